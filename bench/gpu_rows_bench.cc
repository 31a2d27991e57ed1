// Times the fast rows of a GPU at the shapes of a 35B-A3B mixture-of-experts model against the copy bandwidth measured
// in the same run. Calls run back to back in one graph over a set of weights, states or pages at least 8 times the L2,
// so that each call finds its data cold. Prints a table; --json FILE keeps it; --only NAME runs one group: linear,
// experts, router, attention, gated_delta, prefill, small, sample or packing.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <ctime>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "device/device_cuda.h"
#include "ops/all_ops.h"
#include "ops/device_packing.h"
#include "ops/testing.h"
#include "ops/tile_layout_cuda.h"

namespace assay {
namespace {

using namespace ops;
using numeric::WeightFormat;

struct Point {
  std::string op, row, shape;
  double microseconds = 0, megabytes = 0, share = 0, teraflops = 0;
};

// A weight's packed bytes are made once on the host; every copy has its own device memory.
class CopiedWeights : public WeightProvider {
 public:
  CopiedWeights(testing::TestWeights& host, device::Device& device) : host_(host), device_(device) {}
  const WeightSource& source(WeightId id) const override { return host_.source(id); }
  Result<const PackedWeight*> get(WeightId id, LayoutId layout) override {
    ASSAY_ASSIGN(const PackedWeight* packed, host_.get(id, layout));
    ASSAY_ASSIGN(device::Buffer memory, device_.allocate(packed->bytes));
    device_.upload(memory.data(), packed->data, packed->bytes);
    auto copy = std::make_unique<PackedWeight>(*packed);
    copy->data = static_cast<const std::byte*>(memory.data());
    memory_.push_back(std::move(memory));
    copies_.push_back(std::move(copy));
    return static_cast<const PackedWeight*>(copies_.back().get());
  }
  void clear() {
    copies_.clear();
    memory_.clear();
  }

 private:
  testing::TestWeights& host_;
  device::Device& device_;
  std::vector<device::Buffer> memory_;
  std::vector<std::unique_ptr<PackedWeight>> copies_;
};

class Bench {
 public:
  explicit Bench(device::Device& device) : device_(device), weights_(host_, device) { measure_copy(); }

  device::Device& device() { return device_; }
  testing::TestWeights& host() { return host_; }
  double copy_bandwidth() const { return copy_bandwidth_; }
  const std::vector<Point>& points() const { return points_; }
  // How many sets of `bytes` are at least 8 times the L2.
  int sets_for(double bytes) const {
    const double wanted = 8.0 * static_cast<double>(device_.caps().cache_bytes);
    return std::clamp(static_cast<int>(std::ceil(wanted / bytes)), 1, 512);
  }

  // Device memory that lives as long as the bench, of random small bf16 (or fp32) values or of given bytes.
  void* values(DType dtype, int64_t count) {
    std::vector<uint16_t> bits(static_cast<size_t>(count) * dtype_bytes(dtype) / 2);
    for (size_t i = 0; i < bits.size(); ++i) {
      bits[i] =
          static_cast<uint16_t>(0x3C00 | (random_.next() & 0x83FF));  // +-2^-7 to +-1: also as a float's upper half
    }
    return upload(bits.data(), bits.size() * 2);
  }
  void* upload(const void* data, size_t bytes) {
    void* to = space(bytes);
    device_.upload(to, data, bytes);
    return to;
  }
  void* space(size_t bytes) {
    memory_.push_back(std::move(device_.allocate(bytes)).value());
    return memory_.back().data();
  }
  void* repeated(const void* pattern, size_t bytes, size_t times) {
    char* to = static_cast<char*>(space(bytes * times));
    for (size_t i = 0; i < times; ++i) device_.upload(to + i * bytes, pattern, bytes);
    return to;
  }
  View matrix(DType dtype, int64_t rows, int64_t cols) { return View(values(dtype, rows * cols), dtype, rows, cols); }
  void clear() {
    memory_.clear();
    weights_.clear();
  }

  // One point for each fast row: `sets` plans with weights of their own, call i with args(i).
  template <class Op>
  void run(const std::string& shape, const typename Op::Desc& desc, const Bucket& bucket,
           const typename Op::Weights& ids, int sets, int calls, double bytes, double flops,
           const std::function<typename Op::Args(int)>& args, std::string_view only = "") {
    for (const Impl<Op>& impl : Op::impls()) {
      const std::string_view name = impl.name;
      if (impl.backend != device::Backend::kCuda || impl.can_run(desc, device_.caps())) continue;
      if (name == "cuda_reference" || (!only.empty() && name != only)) continue;
      weights_.clear();
      Selector selector;
      MakeContext context{device_.caps(), weights_, selector};
      std::vector<PlanPtr<Op>> plans;
      for (int i = 0; i < sets; ++i) plans.push_back(std::move(impl.make(desc, bucket, ids, context)).value());
      const size_t workspace_bytes = impl.workspace_bytes(desc, bucket, context);
      const device::Buffer workspace = std::move(device_.allocate(workspace_bytes)).value();
      Launch launch;
      launch.stream = device_.stream();
      launch.workspace = View(workspace.data(), DType::kU8, 1, static_cast<int64_t>(workspace_bytes));
      const double us = time([&](int i) { plans[static_cast<size_t>(i % sets)]->enqueue(args(i), launch); }, calls);
      add({std::string(Op::kName), impl.name, shape, us, bytes / 1e6, bytes / us * 1e6 / copy_bandwidth_,
           flops / us / 1e6});
    }
    weights_.clear();
  }
  void add(const Point& point) {
    fmt::print("{:12} {:17} {:34} {:9.2f} us {:9.2f} MB {:6.1f} % {:7.1f} TFLOP/s\n", point.op, point.row, point.shape,
               point.microseconds, point.megabytes, 100 * point.share, point.teraflops);
    points_.push_back(point);
  }

 private:
  // Microseconds a call: the median of 9 replays of a graph of all calls.
  double time(const std::function<void(int)>& enqueue, int calls) {
    const device::Stream stream = device_.stream();
    auto graph = std::move(device::CudaGraph::capture(stream, [&] {
                   for (int i = 0; i < calls; ++i) enqueue(i);
                 })).value();
    device::CudaTimer timer;
    std::vector<double> samples;
    for (int i = 0; i < 12; ++i) {
      timer.start(stream);
      graph.replay(stream);
      timer.stop(stream);
      if (i >= 3) samples.push_back(timer.milliseconds() * 1e3 / calls);
    }
    device_.synchronize();
    std::sort(samples.begin(), samples.end());
    return samples[samples.size() / 2];
  }

  void measure_copy() {
    const size_t bytes = size_t{4} << 30;
    const device::Buffer from = std::move(device_.allocate(bytes)).value();
    const device::Buffer to = std::move(device_.allocate(bytes)).value();
    device_.fill(from.data(), 0x35, bytes);
    const double us = time([&](int) { device::enqueue_copy(device_.stream(), to.data(), from.data(), bytes); }, 1);
    copy_bandwidth_ = 2.0 * static_cast<double>(bytes) / us * 1e6;
  }

  device::Device& device_;
  testing::TestWeights host_;
  CopiedWeights weights_;
  testing::Random random_{1};
  std::vector<device::Buffer> memory_;
  std::vector<Point> points_;
  double copy_bandwidth_ = 0;
};

// A matrix of random bytes that are sane numbers in the format.
testing::OwnedMatrix quick_matrix(testing::Random& random, WeightFormat format, int64_t rows, int64_t cols) {
  testing::OwnedMatrix owned(format, rows, cols);
  const bool packed = format == WeightFormat::kNvfp4;
  for (size_t i = 0; i + 8 <= owned.matrix.data.size(); i += 8) {
    uint64_t bits = random.next();
    if (!packed) bits = (bits & 0x83FF83FF83FF83FFull) | 0x3C003C003C003C00ull;
    std::memcpy(owned.data_bytes() + i, &bits, 8);
  }
  for (size_t i = 0; i < owned.matrix.scales.size(); ++i) {
    owned.scale_bytes()[i] = static_cast<std::byte>(0x20 + random.below(32));
  }
  owned.matrix.global_scale = 0.01f;
  return owned;
}

constexpr double kNvfp4Bytes = 0.5625;  // a weight, with its block scale

void bench_linear(Bench& bench) {
  struct Shape {
    const char* name;
    int64_t n, k;
    WeightFormat format;
    std::vector<int32_t> tokens;
  };
  const std::vector<int32_t> all = {1, 8, 64, 512, 2048}, few = {1, 8, 64, 512};
  const Shape shapes[] = {{"gdn in_proj", 12352, 2048, WeightFormat::kBf16, all},
                          {"gdn out_proj", 2048, 4096, WeightFormat::kBf16, all},
                          {"attention qkv", 9216, 2048, WeightFormat::kBf16, few},
                          {"shared gate_up", 1024, 2048, WeightFormat::kBf16, few},
                          {"shared down", 2048, 512, WeightFormat::kBf16, few},
                          {"lm_head", 248320, 2048, WeightFormat::kBf16, {1, 8, 64}},
                          {"gdn in_proj", 12352, 2048, WeightFormat::kNvfp4, all},
                          {"gdn out_proj", 2048, 4096, WeightFormat::kNvfp4, all}};
  testing::Random random(2);
  for (const Shape& shape : shapes) {
    const double weight_bytes =
        static_cast<double>(shape.n * shape.k) * (shape.format == WeightFormat::kNvfp4 ? kNvfp4Bytes : 2.0);
    const WeightId id = bench.host().add(quick_matrix(random, shape.format, shape.n, shape.k));
    const LinearDesc desc{shape.n, shape.k, shape.format, weight_only_lane(shape.format), DType::kBf16, DType::kBf16};
    const int sets = bench.sets_for(weight_bytes);
    for (int32_t tokens : shape.tokens) {
      const bool prefill = tokens > 64;
      const View x = bench.matrix(DType::kBf16, tokens, shape.k), y = bench.matrix(DType::kBf16, tokens, shape.n);
      const double bytes = weight_bytes + static_cast<double>(tokens * (shape.n + shape.k)) * 2;
      const auto run = [&](const char* row) {
        bench.run<LinearOp>(
            fmt::format("{} {} T={}", shape.name, weight_format_name(shape.format), tokens), desc, {tokens, tokens},
            {id}, sets, std::max(sets, 8), bytes, 2.0 * tokens * static_cast<double>(shape.n * shape.k),
            [&](int) {
              return LinearOp::Args{{prefill ? 0 : tokens, tokens, nullptr}, x, {}, y};
            },
            row);
      };
      run(prefill ? "cuda_gemm" : "cuda_gemv");
      if (prefill) run("cublaslt");
    }
    bench.clear();
  }
}

void bench_experts(Bench& bench) {
  const ExpertsDesc desc{2048, 512, 256, 8, WeightFormat::kNvfp4, Lane::kW4A16, DType::kBf16};
  testing::Random random(3);
  std::vector<testing::OwnedMatrix> matrices;
  for (int e = 0; e < desc.experts; ++e) {
    for (int part = 0; part < 3; ++part) {
      matrices.push_back(part == 2 ? quick_matrix(random, desc.format, desc.hidden, desc.intermediate)
                                   : quick_matrix(random, desc.format, desc.intermediate, desc.hidden));
    }
  }
  const WeightId id = bench.host().add(std::move(matrices));
  const double expert_bytes = 3.0 * static_cast<double>(desc.hidden * desc.intermediate) * kNvfp4Bytes;
  for (int32_t tokens : {1, 8, 64, 2048}) {
    const int calls = tokens == 1 ? 32 : tokens <= 64 ? 8 : 2;
    std::vector<int32_t> ids(static_cast<size_t>(calls * tokens * desc.top_k));
    double active = 0;
    for (int call = 0; call < calls; ++call) {
      std::vector<bool> seen(static_cast<size_t>(desc.experts), false);
      for (int t = 0; t < tokens; ++t) {
        std::vector<int32_t> mine;
        while (mine.size() < static_cast<size_t>(desc.top_k)) {
          const auto e = static_cast<int32_t>(tokens == 1 ? call * desc.top_k + static_cast<int>(mine.size())
                                                          : random.below(desc.experts));
          if (std::find(mine.begin(), mine.end(), e) == mine.end()) mine.push_back(e);
        }
        for (int i = 0; i < desc.top_k; ++i) {
          ids[static_cast<size_t>((call * tokens + t) * desc.top_k + i)] = mine[static_cast<size_t>(i)];
          seen[static_cast<size_t>(mine[static_cast<size_t>(i)])] = true;
        }
      }
      active += static_cast<double>(std::count(seen.begin(), seen.end(), true)) / calls;
    }
    const auto* device_ids = static_cast<const int32_t*>(bench.upload(ids.data(), ids.size() * 4));
    const View x = bench.matrix(DType::kBf16, tokens, desc.hidden), y = bench.matrix(DType::kBf16, tokens, desc.hidden);
    const View weights = bench.matrix(DType::kF32, tokens, desc.top_k), scale = bench.matrix(DType::kF32, tokens, 1);
    const View shared = bench.matrix(DType::kBf16, tokens, desc.hidden);
    const double bytes = active * expert_bytes + 4.0 * tokens * static_cast<double>(desc.hidden) * 2;
    bench.run<ExpertsOp>(
        fmt::format("8 of 256 x 512 T={} ({:.0f} active)", tokens, active), desc, {tokens, tokens}, {id}, 1, calls,
        bytes, 6.0 * tokens * desc.top_k * static_cast<double>(desc.hidden * desc.intermediate), [&](int call) {
          const ConstView chosen(device_ids + call * tokens * desc.top_k, DType::kI32, tokens, desc.top_k);
          return ExpertsOp::Args{{tokens, tokens, nullptr}, x, chosen, weights, shared, scale, x, y};
        });
  }
  bench.clear();
}

void bench_router(Bench& bench) {
  const RouterDesc desc{2048, 256, 8, true, WeightFormat::kBf16, DType::kBf16};
  testing::Random random(4);
  const RouterOp::Weights weights{bench.host().add(quick_matrix(random, WeightFormat::kBf16, 256, 2048)),
                                  bench.host().add(quick_matrix(random, WeightFormat::kBf16, 1, 2048))};
  const double gate_bytes = 257 * 2048 * 2.0;
  const int sets = bench.sets_for(gate_bytes);
  for (int32_t tokens : {1, 8, 64}) {
    const View x = bench.matrix(DType::kBf16, tokens, 2048), ids = bench.matrix(DType::kI32, tokens, 8);
    const View chosen = bench.matrix(DType::kF32, tokens, 8), scale = bench.matrix(DType::kF32, tokens, 1);
    bench.run<RouterOp>(fmt::format("8 of 256 T={}", tokens), desc, {tokens, tokens}, weights, sets, sets,
                        gate_bytes + tokens * 2048 * 2.0, 2.0 * tokens * 257 * 2048, [&](int) {
                          return RouterOp::Args{{tokens, tokens, nullptr}, x, {}, ids, chosen, scale, {}};
                        });
  }
  bench.clear();
}

// Device arrays of B sequences with `tokens` tokens each from `position` on.
BatchView batch_of(Bench& bench, int32_t sequences, int32_t tokens, int32_t position, int32_t pages, Phase phase) {
  std::vector<int32_t> starts, positions, index, table, read, write;
  for (int32_t s = 0; s < sequences; ++s) {
    starts.push_back(s * tokens);
    for (int32_t t = 0; t < tokens; ++t) positions.push_back(position + t), index.push_back(s);
    read.push_back(s), write.push_back(sequences + s);
    for (int32_t p = 0; p < pages; ++p) table.push_back(s * pages + p);
  }
  starts.push_back(sequences * tokens);
  const auto put = [&](const std::vector<int32_t>& values) {
    return values.empty() ? nullptr : static_cast<const int32_t*>(bench.upload(values.data(), values.size() * 4));
  };
  BatchView batch;
  batch.tokens = {phase == Phase::kPrefill ? 0 : sequences * tokens, sequences * tokens, nullptr};
  batch.sequences = sequences;
  batch.query_start = put(starts), batch.positions = put(positions), batch.sequence_of = put(index);
  batch.page_table = put(table), batch.page_table_stride = pages;
  batch.state_read = put(read), batch.state_write = put(write);
  return batch;
}
BatchView decode_batch(Bench& bench, int32_t sequences, int32_t position, int32_t pages) {
  return batch_of(bench, sequences, 1, position, pages, Phase::kDecode);
}

void bench_attention(Bench& bench) {
  const AttentionDesc desc{16, 2, 256, 0.0625f, true, DType::kBf16, DType::kBf16};
  const QkNormRopeDesc rope{16, 2, 256, 64, 1e7, 1e-6f, true, DType::kBf16, DType::kBf16};
  testing::Random random(5);
  const QkNormRopeOp::Weights norms{bench.host().add(quick_matrix(random, WeightFormat::kBf16, 1, 256)),
                                    bench.host().add(quick_matrix(random, WeightFormat::kBf16, 1, 256))};
  constexpr int32_t kContext = 4096, kPageTokens = 64, kPages = kContext / kPageTokens;
  for (int32_t sequences : {1, 8, 64}) {
    const double bytes = 2.0 * 2 * 256 * 2 * kContext * sequences;
    const int sets = bench.sets_for(bytes);
    const int64_t page = int64_t{2} * kPageTokens * 256, elements = page * kPages * sequences;
    const std::vector<uint16_t> pattern(static_cast<size_t>(page), 0x3E12);
    KvCacheView cache;
    const auto pages = static_cast<size_t>(kPages * sequences * sets);
    cache.k = bench.repeated(pattern.data(), pattern.size() * 2, pages);
    cache.v = bench.repeated(pattern.data(), pattern.size() * 2, pages);
    cache.page_tokens = kPageTokens, cache.kv_heads = 2, cache.head_dim = 256, cache.page_stride = page;
    const BatchView batch = decode_batch(bench, sequences, kContext - 1, kPages);
    const View qkv = bench.matrix(DType::kBf16, sequences, 9216), q = bench.matrix(DType::kBf16, sequences, 4096);
    const View out = bench.matrix(DType::kBf16, sequences, 4096);
    const auto cache_of = [&](int i) {
      KvCacheView mine = cache;
      mine.k = static_cast<char*>(cache.k) + (i % sets) * elements * 2;
      mine.v = static_cast<char*>(cache.v) + (i % sets) * elements * 2;
      return mine;
    };
    bench.run<AttentionOp>(
        fmt::format("16/2 x 256, 4K context, B={}", sequences), desc, {sequences, sequences}, {}, 1, std::max(sets, 8),
        bytes, 4.0 * 16 * 256 * kContext * sequences,
        [&](int i) { return AttentionOp::Args{batch, q, qkv.columns(256, 9216 - 256), 512, cache_of(i), out, {}}; });
    bench.run<QkNormRopeOp>(fmt::format("16/2 x 256, B={}", sequences), rope, {sequences, sequences}, norms, 1, 64,
                            sequences * (9216.0 + 4096 + 1024) * 2, 0, [&](int i) {
                              return QkNormRopeOp::Args{batch, qkv, q, cache_of(i)};
                            });
    bench.clear();
  }
}

// A step of prefill: 512 tokens of one sequence.
constexpr int32_t kPrefillTokens = 512;

void bench_attention_prefill(Bench& bench) {
  const AttentionDesc desc{16, 2, 256, 0.0625f, true, DType::kBf16, DType::kBf16};
  for (int32_t past : {0, 3584, 7680}) {
    const int32_t keys = past + kPrefillTokens, pages = keys / 64;
    const double pairs = kPrefillTokens * (past + (kPrefillTokens + 1) / 2.0);
    const int64_t page = int64_t{2} * 64 * 256;
    KvCacheView cache;
    cache.k = bench.values(DType::kBf16, page * pages), cache.v = bench.values(DType::kBf16, page * pages);
    cache.page_tokens = 64, cache.kv_heads = 2, cache.head_dim = 256, cache.page_stride = page;
    const BatchView batch = batch_of(bench, 1, kPrefillTokens, past, pages, Phase::kPrefill);
    const View qkv = bench.matrix(DType::kBf16, kPrefillTokens, 9216);
    const View q = bench.matrix(DType::kBf16, kPrefillTokens, 4096);
    const View out = bench.matrix(DType::kBf16, kPrefillTokens, 4096);
    bench.run<AttentionOp>(
        fmt::format("16/2 x 256, 512 after {}", past), desc, {kPrefillTokens, 1}, {}, 1, 4,
        2.0 * 2 * 256 * 2 * keys + 3.0 * kPrefillTokens * 4096 * 2, 4.0 * 16 * 256 * pairs,
        [&](int) { return AttentionOp::Args{batch, q, qkv.columns(256, 9216 - 256), 512, cache, out, {}}; });
    bench.clear();
  }
}

void bench_gated_delta_prefill(Bench& bench) {
  const GatedDeltaDesc desc{16, 32, 128, 128, DType::kBf16};
  const int64_t slot = int64_t{32} * 128 * 128;
  testing::Random random(8);
  for (int32_t sequences : {1, 4}) {
    const int32_t tokens = kPrefillTokens * sequences;
    RecurrentStateView state;
    state.delta = static_cast<float*>(bench.values(DType::kF32, 2 * sequences * slot));
    state.delta_stride = slot;
    const BatchView batch = batch_of(bench, sequences, kPrefillTokens, 512, 1, Phase::kPrefill);
    const auto floats = [&](int64_t cols, auto value) {
      std::vector<float> values(static_cast<size_t>(tokens * cols));
      for (float& each : values) each = value();
      return View(bench.upload(values.data(), values.size() * 4), DType::kF32, tokens, cols);
    };
    // Keys shorter than 1 and decays below 1, as in a model: the state stays finite.
    const View q = floats(2048, [&] { return random.uniform(-0.1f, 0.1f); });
    const View k = floats(2048, [&] { return random.uniform(-0.1f, 0.1f); });
    const View g = floats(32, [&] { return -random.uniform(0.0f, 1.0f); });
    const View beta = floats(32, [&] { return random.uniform(0.0f, 1.0f); });
    const View v = bench.matrix(DType::kBf16, tokens, 4096), out = bench.matrix(DType::kBf16, tokens, 4096);
    bench.run<GatedDeltaOp>(fmt::format("16/32 x 128, 512 tokens, B={}", sequences), desc, {tokens, sequences}, {}, 1,
                            4, tokens * (4096.0 * 4 + 8192 * 2) + 2.0 * sequences * static_cast<double>(slot) * 4,
                            6.0 * tokens * static_cast<double>(slot),
                            [&](int) { return GatedDeltaOp::Args{batch, q, k, v, g, beta, state, out}; });
    bench.clear();
  }
}

void bench_gated_delta(Bench& bench) {
  const GatedDeltaDesc desc{16, 32, 128, 128, DType::kBf16};
  const ConvGatesDesc conv{16, 32, 128, 128, 4, DType::kBf16};
  testing::Random random(6);
  const ConvGatesOp::Weights weights{bench.host().add(quick_matrix(random, WeightFormat::kBf16, 8192, 4)),
                                     bench.host().add(quick_matrix(random, WeightFormat::kBf16, 1, 32)),
                                     bench.host().add(quick_matrix(random, WeightFormat::kBf16, 1, 32))};
  for (int32_t sequences : {1, 8, 64}) {
    const int64_t slot = int64_t{32} * 128 * 128, conv_slot = 8192 * 3;
    const double bytes = 2.0 * static_cast<double>(slot) * 4 * sequences;
    const int sets = bench.sets_for(bytes);
    RecurrentStateView state;
    const std::vector<uint32_t> pattern(static_cast<size_t>(slot), 0x3DCCCCCD);
    state.delta = static_cast<float*>(
        bench.repeated(pattern.data(), pattern.size() * 4, static_cast<size_t>(2 * sequences * sets)));
    state.delta_stride = slot;
    state.conv = bench.values(DType::kBf16, conv_slot * 2 * sequences);
    state.conv_stride = conv_slot;
    const BatchView batch = decode_batch(bench, sequences, 9, 1);
    const View q = bench.matrix(DType::kF32, sequences, 2048), k = bench.matrix(DType::kF32, sequences, 2048);
    const View v = bench.matrix(DType::kBf16, sequences, 4096), out = bench.matrix(DType::kBf16, sequences, 4096);
    const View g = bench.matrix(DType::kF32, sequences, 32), beta = bench.matrix(DType::kF32, sequences, 32);
    const View qkv = bench.matrix(DType::kBf16, sequences, 8192), ab = bench.matrix(DType::kBf16, sequences, 32);
    bench.run<GatedDeltaOp>(fmt::format("16/32 x 128, B={}", sequences), desc, {sequences, sequences}, {}, 1,
                            std::max(sets, 8), bytes, 0, [&](int i) {
                              RecurrentStateView mine = state;
                              mine.delta += (i % sets) * slot * 2 * sequences;
                              return GatedDeltaOp::Args{batch, q, k, v, g, beta, mine, out};
                            });
    bench.run<ConvGatesOp>(fmt::format("16/32 x 128, B={}", sequences), conv, {sequences, sequences}, weights, 1, 64,
                           sequences * (8192.0 * 2 + 8192 * 3 * 2 * 2 + 4096 * 4 + 4096 * 2) + 8192 * 4 * 4, 0,
                           [&](int) { return ConvGatesOp::Args{batch, qkv, ab, ab, state, q, k, v, g, beta}; });
    bench.clear();
  }
}

void bench_small(Bench& bench) {
  testing::Random random(7);
  const WeightId norm = bench.host().add(quick_matrix(random, WeightFormat::kBf16, 1, 2048));
  const WeightId gated = bench.host().add(quick_matrix(random, WeightFormat::kBf16, 1, 128));
  for (int32_t tokens : {1, 64}) {
    const TokenCounts counts{tokens, tokens, nullptr};
    const View x = bench.matrix(DType::kBf16, tokens, 4096), y = bench.matrix(DType::kBf16, tokens, 4096);
    bench.run<RmsNormOp>(fmt::format("2048, T={}", tokens),
                         {NormKind::kZeroCentred, 2048, 1, 1e-6f, false, DType::kBf16}, {tokens, tokens}, {norm}, 1, 64,
                         tokens * 2048 * 4.0, 0, [&](int) {
                           return RmsNormOp::Args{counts, x.columns(0, 2048), {}, y.columns(0, 2048)};
                         });
    bench.run<RmsNormOp>(fmt::format("gated 32 x 128, T={}", tokens),
                         {NormKind::kGated, 128, 32, 1e-6f, false, DType::kBf16}, {tokens, tokens}, {gated}, 1, 64,
                         tokens * 4096 * 6.0, 0, [&](int) {
                           return RmsNormOp::Args{counts, x, x, y};
                         });
    bench.run<SiluMulOp>(fmt::format("512, T={}", tokens), {512, DType::kBf16}, {tokens, tokens}, {}, 1, 64,
                         tokens * 512 * 6.0, 0, [&](int) {
                           return SiluMulOp::Args{counts, x.columns(0, 1024), y.columns(0, 512)};
                         });
    bench.clear();
  }
}

// The vocabulary of a 35B-A3B model, logits with a deviation of 4 (as of a model) or of 0.01 (all much alike).
void bench_sample(Bench& bench) {
  constexpr int32_t kVocab = 248320;
  struct Kind {
    const char* name;
    float deviation;
    SampleParams params;
  };
  const Kind kinds[] = {
      {"greedy", 4, {}},
      {"greedy, 20 alternatives", 4, {.top_logprobs = 20}},
      {"T 0.7, top_k 20, top_p 0.95", 4, {.temperature = 0.7f, .top_k = 20, .top_p = 0.95f}},
      {"T 1, top_p 0.95, min_p 0.01", 4, {.temperature = 1, .top_p = 0.95f, .min_p = 0.01f}},
      {"T 1", 4, {.temperature = 1}},
      {"T 1, much alike", 0.01f, {.temperature = 1}},
  };
  for (const float deviation : {4.0f, 0.01f}) {
    testing::Random random(8);
    std::vector<float> row(kVocab), rows;
    for (float& logit : row) logit = deviation * random.normal();
    for (int r = 0; r < 64; ++r) rows.insert(rows.end(), row.begin(), row.end());
    const View logits(bench.upload(rows.data(), rows.size() * sizeof(float)), DType::kF32, 64, kVocab);
    auto* results = static_cast<SampleResult*>(bench.space(64 * sizeof(SampleResult)));
    for (const Kind& kind : kinds) {
      if (kind.deviation != deviation) continue;
      std::vector<SampleParams> params(64, kind.params);
      for (size_t r = 0; r < params.size(); ++r) params[r].seed = r;
      const auto* device_params =
          static_cast<const SampleParams*>(bench.upload(params.data(), params.size() * sizeof(SampleParams)));
      for (const int32_t rows_of_step : {1, 64}) {
        bench.run<SampleOp>(
            fmt::format("{}, R={}", kind.name, rows_of_step), {kVocab, 248070}, {rows_of_step, rows_of_step}, {}, 1, 8,
            rows_of_step * double{kVocab} * 4, 0, [&](int) {
              return SampleOp::Args{rows_of_step, logits.slice(0, rows_of_step), device_params, results};
            });
      }
    }
    bench.clear();
  }
}

// Packing a weight on the host and sending it, against sending its file and packing it on the GPU. Bytes: the file's.
template <class Pack>
void time_packing(Bench& bench, const std::string& name, const char* where, double bytes, const Pack& pack) {
  double least = 1e30;
  for (int i = 0; i < 3; ++i) {
    const auto start = std::chrono::steady_clock::now();
    pack();
    bench.device().synchronize();
    least =
        std::min(least, std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
  }
  bench.add({"packing", where, name, least, bytes / 1e6, bytes / least * 1e6 / bench.copy_bandwidth(), 0});
}

void bench_packing(Bench& bench) {
  testing::Random random(9);
  const auto run = [&](const std::string& name, const Layout& layout, std::vector<testing::OwnedMatrix> matrices) {
    const WeightId id = bench.host().add(std::move(matrices));
    const WeightSource& source = bench.host().source(id);
    const size_t bytes = layout.bytes(source);
    const device::Buffer memory = std::move(bench.device().allocate(bytes)).value();
    auto* out = static_cast<std::byte*>(memory.data());
    double file_bytes = 0;
    for (const auto& matrix : source.matrices) file_bytes += static_cast<double>(numeric::encoded_bytes(matrix));
    time_packing(bench, name, "host", file_bytes, [&] {
      std::vector<std::byte> host(bytes);
      CHECK(layout.pack(source, host).ok(), "{}", name);
      bench.device().upload(out, host.data(), bytes);
    });
    time_packing(bench, name, "cuda", file_bytes, [&] {
      CHECK(device_packing(&layout, device::Backend::kCuda)(bench.device(), source, out).ok(), "{}", name);
    });
    bench.clear();
  };
  std::vector<testing::OwnedMatrix> experts;
  for (int i = 0; i < 3 * 256; ++i) {
    experts.push_back(i % 3 == 2 ? quick_matrix(random, WeightFormat::kNvfp4, 2048, 512)
                                 : quick_matrix(random, WeightFormat::kNvfp4, 512, 2048));
  }
  run("experts of a layer, nvfp4", kCudaExpertTileLayout, std::move(experts));
  const auto linear = [&](WeightFormat format, int64_t n, int64_t k) {
    std::vector<testing::OwnedMatrix> matrices;
    matrices.push_back(quick_matrix(random, format, n, k));
    return matrices;
  };
  run("gdn in_proj, bf16", kCudaTileAndRowsLayout, linear(WeightFormat::kBf16, 12352, 2048));
  run("gdn in_proj, nvfp4", kCudaTileLayout, linear(WeightFormat::kNvfp4, 12352, 2048));
  run("lm_head, bf16", kCudaTileLayout, linear(WeightFormat::kBf16, 248320, 2048));
}

nlohmann::ordered_json record(const Bench& bench, const device::DeviceCaps& caps) {
  char date[16];
  const std::time_t now = std::time(nullptr);
  std::strftime(date, sizeof(date), "%Y-%m-%d", std::gmtime(&now));
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const Point& p : bench.points()) {
    rows.push_back({{"op", p.op},
                    {"row", p.row},
                    {"shape", p.shape},
                    {"us", p.microseconds},
                    {"mb", p.megabytes},
                    {"share_of_copy", p.share},
                    {"tflops", p.teraflops}});
  }
  return {{"machine", caps.name},
          {"date", date},
          {"sm", caps.sm},
          {"l2_bytes", caps.cache_bytes},
          {"copy_gb_per_s", bench.copy_bandwidth() / 1e9},
          {"method", "graph of cold calls, median of 9 replays"},
          {"rows", rows}};
}

std::string_view option(int argc, char** argv, const char* name) {
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::strcmp(argv[i], name) == 0) return argv[i + 1];
  }
  return {};
}

int main_with(int argc, char** argv) {
  auto device = device::make_cuda_device(0);
  if (!device.ok()) {
    fmt::print("skipped: {}\n", device.error().message());
    return 77;
  }
  Bench bench(**device);
  fmt::print("{}, copy {:.0f} GB/s (read and written)\n", (*device)->caps().name, bench.copy_bandwidth() / 1e9);
  const std::pair<std::string_view, void (*)(Bench&)> groups[] = {{"linear", bench_linear},
                                                                  {"experts", bench_experts},
                                                                  {"router", bench_router},
                                                                  {"attention", bench_attention},
                                                                  {"gated_delta", bench_gated_delta},
                                                                  {"prefill", bench_attention_prefill},
                                                                  {"prefill", bench_gated_delta_prefill},
                                                                  {"small", bench_small},
                                                                  {"sample", bench_sample},
                                                                  {"packing", bench_packing}};
  const std::string_view only = option(argc, argv, "--only");
  for (const auto& [name, run] : groups) {
    if (only.empty() || only == name) run(bench);
  }
  if (const std::string_view file = option(argc, argv, "--json"); !file.empty()) {
    std::ofstream(std::string(file)) << record(bench, (*device)->caps()).dump(1) << "\n";
  }
  return 0;
}

}  // namespace
}  // namespace assay

int main(int argc, char** argv) { return assay::main_with(argc, argv); }

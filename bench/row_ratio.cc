// row_ratio [--json] [--op NAME]: every CPU row of every part op at the sizes of models/pocket, on one thread, with
// warm caches: microseconds, how many times faster than the reference row, bytes and FLOPs per second, and the share of
// the least time that the cache's read bandwidth and the best FLOP/s, measured in the same run, allow. Ratios are of
// one run on one machine; nothing here is a test.
#include <fmt/core.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "backend/cpu/limits.h"
#include "base/clock.h"
#include "ops/testing.h"
#include "ops/testing_batch.h"
#include "ops/work.h"

namespace assay::ops {
namespace {

using testing::Cpu;
using testing::OwnedMatrix;
using testing::Random;
using testing::Tensor;
using WF = numeric::WeightFormat;

constexpr DType kActivation = DType::kBf16;
constexpr int64_t kHidden = 256;
constexpr int64_t kIntermediate = 128;
constexpr int32_t kExperts = 16;
constexpr int32_t kTopK = 4;
constexpr int64_t kVocab = 3072;

// Args point to this process's memory.
std::vector<int32_t> read_host(const void* data, int64_t count) {
  const auto* values = static_cast<const int32_t*>(data);
  return {values, values + count};
}

struct Timing {
  std::string op, desc, row;
  int32_t tokens;
  double us;
  double ratio;  // reference time / this row's
  Work work;
  double share;  // of the limits' time
};

class Report {
 public:
  Report() {
    Cpu cpu;
    limits_ = cpu::measure_limits(cpu::pool_of(cpu.device().stream()), cpu.device().caps());
  }

  // Times every row of Op that can run the Desc; rows end with the reference.
  template <class Op>
  void measure(Cpu& cpu, const typename Op::Desc& desc, const typename Op::Weights& weights,
               const typename Op::Args& args, int32_t tokens) {
    const size_t first = timings_.size();
    const Work work = ops::work(desc, args, read_host);
    for (const Impl<Op>& impl : Op::impls()) {
      if (impl.backend != device::Backend::kCpu || impl.can_run(desc, cpu.device().caps())) continue;
      const auto ready = cpu.prepare<Op>(impl.name, desc, {tokens, 1}, weights);
      const double us = best_us([&] { ready.run(args); });
      const double least_s = std::max(work.bytes / limits_.l3_read, work.flops / limits_.best_flops());
      timings_.push_back({std::string(Op::kName), describe(desc), impl.name, tokens, us, 1, work, least_s * 1e6 / us});
    }
    for (size_t i = first; i < timings_.size(); ++i) timings_[i].ratio = timings_.back().us / timings_[i].us;
  }

  void print_table() const {
    fmt::print("one thread: cache read {:.1f} GB/s, best {:.1f} GFLOP/s\n", limits_.l3_read / 1e9,
               limits_.best_flops() / 1e9);
    fmt::print("{:<12} {:<56} {:>3}  {:<15} {:>9} {:>7} {:>7} {:>8} {:>6}\n", "op", "desc", "T", "row", "us", "ratio",
               "GB/s", "GFLOP/s", "share");
    for (const Timing& t : timings_) {
      fmt::print("{:<12} {:<56.56} {:>3}  {:<15} {:>9.2f} {:>7.2f} {:>7.1f} {:>8.1f} {:>6.2f}\n", t.op, t.desc,
                 t.tokens, t.row, t.us, t.ratio, t.work.bytes / t.us / 1e3, t.work.flops / t.us / 1e3, t.share);
    }
  }

  void print_json() const {
    std::string lines;
    for (const Timing& t : timings_) {
      lines += fmt::format(
          "{}  {{\"op\": \"{}\", \"desc\": \"{}\", \"tokens\": {}, \"row\": \"{}\", \"us\": {:.3f}, \"ratio\": "
          "{:.3f}, \"bytes\": {:.0f}, \"flops\": {:.0f}, \"share\": {:.3f}}}",
          lines.empty() ? "" : ",\n", t.op, t.desc, t.tokens, t.row, t.us, t.ratio, t.work.bytes, t.work.flops,
          t.share);
    }
    fmt::print("[\n{}\n]\n", lines);
  }

 private:
  // The mean of the best of at least five rounds of 2 ms, until 100 ms are over: short rounds, so that some are free of
  // neighbours on the same core. A reading of the clock may cost more than a small row: calls between two readings are
  // doubled until they take 20 us.
  template <class Body>
  static double best_us(const Body& body) {
    constexpr int64_t kBatchUs = 20, kRoundUs = 2'000, kTotalUs = 100'000;
    const auto time_us = [&body](int64_t calls) {
      const int64_t start = now_us();
      for (int64_t i = 0; i < calls; ++i) body();
      return now_us() - start;
    };
    body();
    int64_t batch = 1;
    while (time_us(batch) < kBatchUs) batch *= 2;
    double best = 0;
    const int64_t begin = now_us();
    for (int round = 0; round < 5 || now_us() - begin < kTotalUs; ++round) {
      int64_t calls = 0, elapsed = 0;
      for (; elapsed < kRoundUs; calls += batch) elapsed += time_us(batch);
      const double mean = static_cast<double>(elapsed) / static_cast<double>(calls);
      best = round == 0 ? mean : std::min(best, mean);
    }
    return best;
  }

  cpu::Limits limits_;  // of one thread
  std::vector<Timing> timings_;
};

Tensor normal(Random& random, DType dtype, int64_t rows, int64_t cols) {
  return std::move(Tensor(dtype, rows, cols, 0).fill_normal(random));
}

TokenCounts counts(int32_t tokens) { return {0, tokens, nullptr}; }

void linear(Report& report, int32_t tokens) {
  struct Shape {
    int64_t n, k;
    WF format;
  };
  // Delta net in, attention in and out, shared expert, head; then expert-like NVFP4 sizes.
  const Shape shapes[] = {{1544, kHidden, WF::kBf16}, {kHidden, 512, WF::kBf16},  {3072, kHidden, WF::kBf16},
                          {kHidden, 1024, WF::kBf16}, {256, kHidden, WF::kBf16},  {kHidden, kIntermediate, WF::kBf16},
                          {256, kHidden, WF::kNvfp4}, {1024, kHidden, WF::kNvfp4}};
  for (const Shape& shape : shapes) {
    Random random(1);
    Cpu cpu;
    const LinearDesc desc{shape.n, shape.k, shape.format, weight_only_lane(shape.format), kActivation, kActivation};
    const WeightId id = cpu.weights().add(testing::random_matrix(random, shape.format, shape.n, shape.k));
    const Tensor x = normal(random, kActivation, tokens, shape.k);
    Tensor y(kActivation, tokens, shape.n);
    report.measure<LinearOp>(cpu, desc, {id}, {counts(tokens), x.view(), {}, y.view()}, tokens);
  }
}

void embed(Report& report, int32_t tokens) {
  Random random(2);
  Cpu cpu;
  const WeightId id = cpu.weights().add(testing::random_matrix(random, WF::kBf16, kVocab, kHidden));
  Tensor ids(DType::kI32, tokens, 1, 0), y(kActivation, tokens, kHidden);
  ids.fill([&](int64_t, int64_t) { return static_cast<float>(random.below(kVocab)); });
  report.measure<EmbedOp>(cpu, {kVocab, kHidden, WF::kBf16, kActivation}, {id}, {counts(tokens), ids.view(), y.view()},
                          tokens);
}

void rms_norm(Report& report, int32_t tokens) {
  for (const RmsNormDesc& desc : {RmsNormDesc{NormKind::kZeroCentred, kHidden, 1, 1e-6f, false, kActivation},
                                  RmsNormDesc{NormKind::kGated, 128, 4, 1e-6f, false, kActivation}}) {
    Random random(3);
    Cpu cpu;
    const WeightId id = cpu.weights().add(testing::random_matrix(random, WF::kBf16, 1, desc.width));
    const Tensor x = normal(random, kActivation, tokens, desc.width * desc.groups);
    const Tensor z = normal(random, kActivation, tokens, desc.width * desc.groups);
    Tensor y(kActivation, tokens, desc.width * desc.groups);
    report.measure<RmsNormOp>(cpu, desc, {id}, {counts(tokens), x.view(), z.view(), y.view()}, tokens);
  }
}

void silu_mul(Report& report, int32_t tokens) {
  Random random(4);
  Cpu cpu;
  const Tensor gate_up = normal(random, kActivation, tokens, 2 * kIntermediate);
  Tensor y(kActivation, tokens, kIntermediate);
  report.measure<SiluMulOp>(cpu, {kIntermediate, kActivation}, {}, {counts(tokens), gate_up.view(), y.view()}, tokens);
}

void router(Report& report, int32_t tokens) {
  Random random(5);
  Cpu cpu;
  const RouterDesc desc{kHidden, kExperts, kTopK, true, WF::kBf16, kActivation};
  const WeightId gate = cpu.weights().add(testing::random_matrix(random, WF::kBf16, kExperts, kHidden));
  const WeightId shared = cpu.weights().add(testing::random_matrix(random, WF::kBf16, 1, kHidden));
  const Tensor x = normal(random, kActivation, tokens, kHidden);
  Tensor ids(DType::kI32, tokens, kTopK), weights(DType::kF32, tokens, kTopK), scale(DType::kF32, tokens, 1);
  report.measure<RouterOp>(cpu, desc, {gate, shared},
                           {counts(tokens), x.view(), {}, ids.view(), weights.view(), scale.view(), {}}, tokens);
}

void experts(Report& report, int32_t tokens) {
  for (WF format : {WF::kNvfp4, WF::kBf16}) {
    Random random(6);
    Cpu cpu;
    const ExpertsDesc desc{kHidden, kIntermediate, kExperts, kTopK, format, weight_only_lane(format), kActivation};
    std::vector<OwnedMatrix> matrices;
    for (int32_t e = 0; e < kExperts; ++e) {
      matrices.push_back(testing::random_matrix(random, format, kIntermediate, kHidden));
      matrices.push_back(testing::random_matrix(random, format, kIntermediate, kHidden));
      matrices.push_back(testing::random_matrix(random, format, kHidden, kIntermediate));
    }
    const WeightId id = cpu.weights().add(std::move(matrices));
    const Tensor x = normal(random, kActivation, tokens, kHidden),
                 shared = normal(random, kActivation, tokens, kHidden);
    Tensor ids(DType::kI32, tokens, kTopK), weights(DType::kF32, tokens, kTopK), scale(DType::kF32, tokens, 1);
    ids.fill([](int64_t t, int64_t i) { return static_cast<float>((t * 5 + i * 3) % kExperts); });
    weights.fill([](int64_t, int64_t) { return 0.25f; });
    scale.fill([](int64_t, int64_t) { return 0.5f; });
    Tensor y(kActivation, tokens, kHidden);
    report.measure<ExpertsOp>(
        cpu, desc, {id},
        {counts(tokens), x.view(), ids.view(), weights.view(), shared.view(), scale.view(), x.view(), y.view()},
        tokens);
  }
}

constexpr int32_t kContext = 512;  // positions after the step
constexpr int32_t kPageTokens = 16;
constexpr int32_t kHeads = 4, kKvHeads = 2, kHeadDim = 256;
constexpr int32_t kKeyHeads = 2, kValueHeads = 4, kStateDim = 128;

// One sequence whose last `tokens` of kContext positions are the step; state goes from slot 0 to slot 1.
testing::TestBatch one_sequence(int32_t tokens, std::vector<int32_t> pages = {}) {
  return testing::TestBatch({{kContext - tokens, tokens, std::move(pages), 0, 1}});
}

testing::TestCache filled_cache(Random& random) {
  constexpr int32_t kPages = kContext / kPageTokens;
  testing::TestCache cache(random, kActivation, kPages, kPageTokens, kKvHeads, kHeadDim);
  const int64_t elements = cache.view().page_stride * kPages;
  for (int64_t i = 0; i < elements; ++i) cache.set(i, random.normal(), random.normal());
  return cache;
}

void qk_norm_rope(Report& report, int32_t tokens) {
  Random random(7);
  Cpu cpu;
  const QkNormRopeDesc desc{kHeads, kKvHeads, kHeadDim, 64, 1e7, 1e-6f, true, kActivation, kActivation};
  const WeightId q_norm = cpu.weights().add(testing::random_matrix(random, WF::kBf16, 1, kHeadDim));
  const WeightId k_norm = cpu.weights().add(testing::random_matrix(random, WF::kBf16, 1, kHeadDim));
  testing::TestCache cache = filled_cache(random);
  const testing::TestBatch batch = one_sequence(tokens, cache.pages_for(kContext));
  const Tensor qkv = normal(random, kActivation, tokens, (2 * kHeads + 2 * kKvHeads) * kHeadDim);
  Tensor q(kActivation, tokens, kHeads * kHeadDim);
  report.measure<QkNormRopeOp>(cpu, desc, {q_norm, k_norm}, {batch.view(), qkv.view(), q.view(), cache.view()}, tokens);
}

void attention(Report& report, int32_t tokens) {
  Random random(8);
  Cpu cpu;
  const AttentionDesc desc{kHeads, kKvHeads, kHeadDim, 1.0f / 16, true, kActivation, kActivation};
  testing::TestCache cache = filled_cache(random);
  const testing::TestBatch batch = one_sequence(tokens, cache.pages_for(kContext));
  const Tensor q = normal(random, kActivation, tokens, kHeads * kHeadDim);
  const Tensor gate = normal(random, kActivation, tokens, kHeads * kHeadDim);
  Tensor out(kActivation, tokens, kHeads * kHeadDim);
  report.measure<AttentionOp>(cpu, desc, {},
                              {batch.view(), q.view(), gate.view(), kHeadDim, cache.view(), out.view(), {}}, tokens);
}

void conv_gates(Report& report, int32_t tokens) {
  Random random(9);
  Cpu cpu;
  const ConvGatesDesc desc{kKeyHeads, kValueHeads, kStateDim, kStateDim, 4, kActivation};
  const WeightId conv = cpu.weights().add(testing::random_matrix(random, WF::kBf16, desc.channels(), desc.width));
  const WeightId a_log = cpu.weights().add(testing::random_matrix(random, WF::kF32, 1, kValueHeads));
  const WeightId dt_bias = cpu.weights().add(testing::random_matrix(random, WF::kF32, 1, kValueHeads));
  testing::TestState state(kActivation, 2, desc.channels() * (desc.width - 1), 1);
  state.conv.fill_normal(random);
  const testing::TestBatch batch = one_sequence(tokens);
  const Tensor qkv = normal(random, kActivation, tokens, desc.channels());
  const Tensor a = normal(random, kActivation, tokens, kValueHeads),
               b = normal(random, kActivation, tokens, kValueHeads);
  Tensor q(DType::kF32, tokens, kKeyHeads * kStateDim), k(DType::kF32, tokens, kKeyHeads * kStateDim);
  Tensor v(kActivation, tokens, kValueHeads * kStateDim);
  Tensor g(DType::kF32, tokens, kValueHeads), beta(DType::kF32, tokens, kValueHeads);
  report.measure<ConvGatesOp>(
      cpu, desc, {conv, a_log, dt_bias},
      {batch.view(), qkv.view(), a.view(), b.view(), state.view(), q.view(), k.view(), v.view(), g.view(), beta.view()},
      tokens);
}

void gated_delta(Report& report, int32_t tokens) {
  Random random(10);
  Cpu cpu;
  const GatedDeltaDesc desc{kKeyHeads, kValueHeads, kStateDim, kStateDim, kActivation};
  testing::TestState state(kActivation, 2, 1, int64_t{kValueHeads} * kStateDim * kStateDim);
  state.delta.fill_normal(random);
  const testing::TestBatch batch = one_sequence(tokens);
  // Keys and queries of length 1, as conv_gates leaves them.
  Tensor q(DType::kF32, tokens, kKeyHeads * kStateDim, 0), k(DType::kF32, tokens, kKeyHeads * kStateDim, 0);
  q.fill([&](int64_t, int64_t) { return 0.0078f * random.normal(); });
  k.fill([&](int64_t, int64_t) { return 0.088f * random.normal(); });
  const Tensor v = normal(random, kActivation, tokens, kValueHeads * kStateDim);
  Tensor g(DType::kF32, tokens, kValueHeads), beta(DType::kF32, tokens, kValueHeads);
  g.fill([&](int64_t, int64_t) { return random.uniform(-0.5f, 0.0f); });
  beta.fill([&](int64_t, int64_t) { return random.uniform(0.0f, 1.0f); });
  Tensor out(kActivation, tokens, kValueHeads * kStateDim);
  report.measure<GatedDeltaOp>(
      cpu, desc, {}, {batch.view(), q.view(), k.view(), v.view(), g.view(), beta.view(), state.view(), out.view()},
      tokens);
}

void sample(Report& report, int32_t tokens) {
  Random random(11);
  Cpu cpu;
  const Tensor logits = normal(random, DType::kF32, tokens, kVocab);
  SampleParams params;
  params.temperature = 0.8f;
  params.top_p = 0.95f;
  const std::vector<SampleParams> all(static_cast<size_t>(tokens), params);
  std::vector<SampleResult> results(all.size());
  SampleOp::Args args;
  args.rows = tokens;
  args.logits = logits.view();
  args.params = all.data();
  args.results = results.data();
  report.measure<SampleOp>(cpu, {static_cast<int32_t>(kVocab), static_cast<int32_t>(kVocab) - 16}, {}, args, tokens);
}

// One line per part op; an op that keeps state or a cache makes it in its function.
struct Bench {
  std::string_view op;
  void (*run)(Report&, int32_t tokens);
};
constexpr Bench kBenches[] = {{"embed", embed},
                              {"rms_norm", rms_norm},
                              {"linear", linear},
                              {"qk_norm_rope", qk_norm_rope},
                              {"attention", attention},
                              {"conv_gates", conv_gates},
                              {"gated_delta", gated_delta},
                              {"router", router},
                              {"experts", experts},
                              {"silu_mul", silu_mul},
                              {"sample", sample}};

}  // namespace
}  // namespace assay::ops

int main(int argc, char** argv) {
  bool json = false;
  std::string_view op;
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    if (flag == "--json") {
      json = true;
    } else if (flag == "--op" && i + 1 < argc) {
      op = argv[++i];
    } else {
      fmt::print(stderr, "usage: row_ratio [--json] [--op NAME]\n");
      return 2;
    }
  }
  assay::ops::Report report;
  for (const assay::ops::Bench& bench : assay::ops::kBenches) {
    if (!op.empty() && bench.op != op) continue;
    for (int32_t tokens : {1, 32}) bench.run(report, tokens);
  }
  json ? report.print_json() : report.print_table();
  return 0;
}

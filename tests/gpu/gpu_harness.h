// Runs rows of a GPU beside the CPU's reference rows on the same host data and keeps what was seen.
//
// A case is a Data struct of host tensors with `Args args(Memory&)` and `std::vector<Tensor*> outputs()`, copied afresh
// for every run, outputs poisoned. The sentinel's word must be the reference's. Each GPU row runs three times:
// directly; captured in a graph with live token counts on the device; and with the last token not live, which must then
// stay poisoned.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "device/device_cuda.h"
#include "ops/testing.h"
#include "ops/testing_batch.h"

namespace assay::gpu_test {

using namespace ops;
using ops::testing::Cpu;
using ops::testing::Random;
using ops::testing::Tensor;
using ops::testing::TestWeights;

// What one row did in one case. `ratio`: worst error over bound, <= 1 is right.
struct Outcome {
  std::string op, row, name;
  double ratio = 0;
  bool same_in_graph = true;   // bit for bit, graph replay with live counts against the direct run
  bool dead_untouched = true;  // outputs of a token that is not live
  bool same_flags = true;      // the sentinel's word is the reference's
  bool invariant = true;       // bit for bit, batched against one by one, where the case looks
  std::string failure = "";

  bool ok() const {
    return failure.empty() && ratio <= 1 && same_in_graph && dead_untouched && same_flags && invariant;
  }
};

// Weights of the host, packed there and uploaded.
class GpuWeights : public WeightProvider {
 public:
  GpuWeights(TestWeights& host, device::Device& device) : host_(host), device_(device) {}
  const WeightSource& source(WeightId id) const override { return host_.source(id); }
  Result<const PackedWeight*> get(WeightId id, LayoutId layout) override {
    for (const Entry& entry : entries_) {
      if (entry.id == id && entry.packed->layout == layout) return static_cast<const PackedWeight*>(entry.packed.get());
    }
    ASSAY_ASSIGN(const PackedWeight* packed, host_.get(id, layout));
    ASSAY_ASSIGN(device::Buffer memory, device_.allocate(packed->bytes));
    device_.upload(memory.data(), packed->data, packed->bytes);
    auto copy = std::make_unique<PackedWeight>(*packed);
    copy->data = static_cast<const std::byte*>(memory.data());
    entries_.push_back({id, std::move(copy), std::move(memory)});
    return static_cast<const PackedWeight*>(entries_.back().packed.get());
  }

 private:
  struct Entry {
    WeightId id;
    std::unique_ptr<PackedWeight> packed;
    device::Buffer memory;
  };
  TestWeights& host_;
  device::Device& device_;
  std::vector<Entry> entries_;
};

// Host memory as one side sees it: itself (no device), or copies on the device that download() brings back.
class Memory {
 public:
  explicit Memory(device::Device* device) : device_(device) {}

  template <class T>
  T* map(T* host, size_t bytes) {
    if (device_ == nullptr || host == nullptr) return host;
    for (const Copy& copy : copies_) {
      if (copy.host == static_cast<const void*>(host)) return static_cast<T*>(copy.buffer.data());
    }
    device::Buffer buffer = std::move(device_->allocate(bytes)).value();
    device_->upload(buffer.data(), host, bytes);
    void* data = buffer.data();
    copies_.push_back(
        {const_cast<void*>(static_cast<const void*>(host)), bytes, std::move(buffer), !std::is_const_v<T>});
    return static_cast<T*>(data);
  }
  View out(Tensor& tensor) {
    View view = tensor.view();
    view.data = map(static_cast<char*>(view.data), bytes_of(view));
    return view;
  }
  ConstView in(const Tensor& tensor) {
    ConstView view = tensor.view();
    view.data = map(static_cast<const char*>(view.data), bytes_of(view));
    return view;
  }
  BatchView batch(const testing::TestBatch& host) {
    BatchView view = host.view();
    const auto sequences = static_cast<size_t>(view.sequences);
    const auto tokens = static_cast<size_t>(view.tokens.total);
    view.query_start = map(view.query_start, (sequences + 1) * 4);
    view.positions = map(view.positions, tokens * 4);
    view.sequence_of = map(view.sequence_of, tokens * 4);
    view.page_table = map(view.page_table, sequences * static_cast<size_t>(view.page_table_stride) * 4);
    view.state_read = map(view.state_read, sequences * 4);
    view.state_write = map(view.state_write, sequences * 4);
    return view;
  }
  RecurrentStateView state(testing::TestState& host) {
    RecurrentStateView view = host.view();
    view.conv = out(host.conv).data;
    view.delta = static_cast<float*>(out(host.delta).data);
    return view;
  }
  KvCacheView cache(testing::TestCache& host, int64_t pages) {
    KvCacheView view = host.view();
    const size_t bytes = static_cast<size_t>(view.page_stride * pages) * dtype_bytes(view.dtype);
    view.k = map(static_cast<char*>(view.k), bytes);
    view.v = map(static_cast<char*>(view.v), bytes);
    return view;
  }
  void download() {
    for (Copy& copy : copies_) {
      if (copy.writable) device_->download(copy.host, copy.buffer.data(), copy.bytes);
    }
  }
  // The device copies as they were before the run.
  void restore() {
    for (Copy& copy : copies_) device_->upload(copy.buffer.data(), copy.host, copy.bytes);
  }

 private:
  struct Copy {
    void* host;
    size_t bytes;
    device::Buffer buffer;
    bool writable;
  };
  template <class V>
  static size_t bytes_of(const V& view) {
    return static_cast<size_t>(view.rows * view.stride) * dtype_bytes(view.dtype);
  }
  device::Device* device_;
  std::vector<Copy> copies_;
};

class Gpu {
 public:
  explicit Gpu(std::unique_ptr<device::Device> device) : device_(std::move(device)) {}
  device::Device& device() { return *device_; }

  // One run on `data`. live: null, or the counts to put on the device; then captured in a graph and replayed twice.
  template <class Op, class Data>
  std::string run(const Impl<Op>& impl, const typename Op::Desc& desc, const Bucket& bucket,
                  const typename Op::Weights& weights, TestWeights& host, Data& data, const int32_t* live = nullptr) {
    GpuWeights provider(host, *device_);
    Selector selector;
    MakeContext context{device_->caps(), provider, selector};
    auto plan = impl.make(desc, bucket, weights, context);
    if (!plan.ok()) return plan.error().message();
    Memory memory(device_.get());
    typename Op::Args args = data.args(memory);
    const size_t bytes = impl.workspace_bytes(desc, bucket, context);
    device::Buffer workspace = std::move(device_->allocate(bytes + kGuard)).value();
    device_->fill(workspace.data(), 0xFF, bytes + kGuard);
    Launch launch;
    launch.stream = device_->stream();
    launch.workspace = View(workspace.data(), DType::kU8, 1, static_cast<int64_t>(bytes));
    device::Buffer words = std::move(device_->allocate(8)).value();
    device_->fill(words.data(), 0, 8);
    Sentinel sentinel{static_cast<uint32_t*>(words.data())};
    launch.flags = &sentinel;
    if (live == nullptr) {
      (*plan)->enqueue(args, launch);
    } else {
      const int32_t* counts = memory.map(live, 8);
      if constexpr (requires { args.batch; }) args.batch.tokens.live = counts;
      if constexpr (requires { args.tokens; }) args.tokens.live = counts;
      auto graph = device::CudaGraph::capture(launch.stream, [&] { (*plan)->enqueue(args, launch); });
      if (!graph.ok()) return graph.error().message();
      graph->replay(launch.stream);
      device_->synchronize();
      memory.restore();
      device_->fill(workspace.data(), 0x7F, bytes);
      graph->replay(launch.stream);
    }
    device_->synchronize();
    memory.download();
    std::vector<uint8_t> guard(kGuard);
    device_->download(guard.data(), static_cast<char*>(workspace.data()) + bytes, kGuard);
    const uint8_t wanted = 0xFF;
    for (uint8_t byte : guard) {
      if (byte != wanted) return "workspace overrun";
    }
    device_->download(&flags_, words.data(), 4);
    for (Tensor* tensor : data.outputs()) {
      if (!tensor->guards_intact()) return "guard columns overwritten";
    }
    return "";
  }
  uint32_t flags() const { return flags_; }  // of the last run

 private:
  static constexpr size_t kGuard = 256;
  std::unique_ptr<device::Device> device_;
  uint32_t flags_ = 0;
};

inline bool same_row(const Tensor& a, int64_t i, const Tensor& b, int64_t j) {
  const auto bytes = static_cast<size_t>(a.cols()) * dtype_bytes(a.dtype());
  const auto at = [](const Tensor& tensor, int64_t row) {
    const ConstView view = tensor.view();
    return static_cast<const char*>(view.data) + static_cast<size_t>(row * view.stride) * dtype_bytes(view.dtype);
  };
  return std::memcmp(at(a, i), at(b, j), bytes) == 0;
}

// Element by element: |got - wanted| over bound(row, col); a NaN where the other has none is infinitely wrong.
template <class Bound>
double worst_ratio(const Tensor& wanted, const Tensor& got, const Bound& bound) {
  double worst = 0;
  for (int64_t row = 0; row < wanted.rows(); ++row) {
    for (int64_t col = 0; col < wanted.cols(); ++col) {
      const double a = wanted.at(row, col), b = got.at(row, col);
      if (a == b || (std::isnan(a) && std::isnan(b))) continue;
      const double ratio = std::abs(a - b) / bound(row, col);
      worst = std::isfinite(ratio) ? std::max(worst, ratio) : std::numeric_limits<double>::infinity();
    }
  }
  return worst;
}

// A sum on the tensor cores: one truncation a k16 step and fold.
inline double mma_error_bound(int64_t k, double sum_of_magnitudes) {
  return (2.0 * static_cast<double>((k + 15) / 16) + 22) * 0x1p-23 * sum_of_magnitudes;
}

class Suite {
 public:
  // only_op: the rows of this op alone; empty: of all. without_row: rows of this name are left out.
  Suite(Gpu& gpu, std::string only_op, std::string without_row)
      : gpu_(gpu), only_op_(std::move(only_op)), without_row_(std::move(without_row)) {}
  Gpu& gpu() { return gpu_; }
  Cpu& cpu() { return cpu_; }
  const std::vector<Outcome>& outcomes() const { return outcomes_; }
  bool wants(std::string_view op) const { return only_op_.empty() || only_op_ == op; }
  template <class Op>
  bool wants() const {
    return wants(Op::kName);
  }

  // Every GPU row of Op that can run desc against the CPU's reference row. judge(reference data, row's data, row's
  // name) gives the error ratio. decode: how many of the tokens are decode rows. Returns the reference's data.
  template <class Op, class Data, class Judge>
  Data check(const std::string& name, const typename Op::Desc& desc, const Bucket& bucket,
             const typename Op::Weights& weights, const Data& fresh, int32_t decode, const Judge& judge) {
    Data wanted = fresh;
    if (!wants<Op>()) return wanted;
    Memory host(nullptr);
    uint32_t flags = 0;
    Sentinel sentinel{&flags};
    cpu_.prepare<Op>("reference", desc, bucket, weights).run(wanted.args(host), nullptr, &sentinel);
    for (const Impl<Op>& impl : Op::impls()) {
      if (impl.backend != device::Backend::kCuda || impl.name == without_row_) continue;
      if (impl.can_run(desc, gpu_.device().caps())) continue;
      Outcome outcome{std::string(Op::kName), impl.name, name};
      Data direct = fresh;
      outcome.failure = gpu_.run<Op>(impl, desc, bucket, weights, cpu_.weights(), direct);
      if (outcome.failure.empty()) {
        outcome.ratio = judge(wanted, direct, std::string_view(impl.name));
        outcome.same_flags = gpu_.flags() == flags;
        check_live<Op>(impl, desc, bucket, weights, fresh, direct, decode, outcome);
      }
      outcomes_.push_back(outcome);
    }
    return wanted;
  }

  // Bit for bit: each GPU row on `whole` and on each of `parts`, whose token i is token first[i] of the whole.
  template <class Op, class Data>
  void check_invariant(const std::string& name, const typename Op::Desc& desc, const Bucket& bucket,
                       const typename Op::Weights& weights, const Data& whole, const std::vector<Data>& parts,
                       const std::vector<int64_t>& firsts) {
    if (!wants<Op>()) return;
    for (const Impl<Op>& impl : Op::impls()) {
      if (impl.backend != device::Backend::kCuda || impl.name == without_row_) continue;
      if (impl.can_run(desc, gpu_.device().caps())) continue;
      Outcome outcome{std::string(Op::kName), impl.name, name};
      Data batched = whole;
      outcome.failure = gpu_.run<Op>(impl, desc, bucket, weights, cpu_.weights(), batched);
      for (size_t p = 0; p < parts.size() && outcome.failure.empty(); ++p) {
        Data part = parts[p];
        outcome.failure = gpu_.run<Op>(impl, desc, bucket, weights, cpu_.weights(), part);
        const auto all = batched.outputs(), some = part.outputs();
        for (size_t o = 0; o < all.size(); ++o) {
          for (int64_t row = 0; row < some[o]->rows(); ++row) {
            outcome.invariant = outcome.invariant && same_row(*all[o], firsts[p] + row, *some[o], row);
          }
        }
      }
      outcomes_.push_back(outcome);
    }
  }
  void add(Outcome outcome) { outcomes_.push_back(std::move(outcome)); }

 private:
  template <class Op, class Data>
  void check_live(const Impl<Op>& impl, const typename Op::Desc& desc, const Bucket& bucket,
                  const typename Op::Weights& weights, const Data& fresh, Data& direct, int32_t decode,
                  Outcome& outcome) {
    if constexpr (requires(typename Op::Args args) { args.rows; }) return;
    const int32_t total = bucket.tokens;
    for (const int32_t live_total : {total, total - 1}) {
      const int32_t live[2] = {std::min(decode, live_total), live_total};
      Data data = fresh;
      outcome.failure = gpu_.run<Op>(impl, desc, bucket, weights, cpu_.weights(), data, live);
      if (!outcome.failure.empty()) return;
      Data untouched = fresh;
      const auto got = data.outputs(), wanted = direct.outputs(), poison = untouched.outputs();
      for (size_t o = 0; o < got.size(); ++o) {
        for (int64_t row = 0; row < got[o]->rows(); ++row) {
          if (row < live_total) {
            outcome.same_in_graph = outcome.same_in_graph && same_row(*got[o], row, *wanted[o], row);
          } else {
            outcome.dead_untouched = outcome.dead_untouched && same_row(*got[o], row, *poison[o], row);
          }
        }
      }
    }
  }

  Gpu& gpu_;
  std::string only_op_, without_row_;
  Cpu cpu_{4};
  std::vector<Outcome> outcomes_;
};

void check_packing(Suite& suite);       // layouts that the GPU packs, as op "packing"
void check_matrix_ops(Suite& suite);    // embed rms_norm linear silu_mul router experts
void check_sequence_ops(Suite& suite);  // qk_norm_rope attention conv_gates gated_delta sample

}  // namespace assay::gpu_test

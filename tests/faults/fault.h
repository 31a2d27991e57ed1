// Faults: wrong rows on purpose, to see that the proof can fail. Built only with ASSAY_FAULTS=ON.
//
// A fault wraps a healthy row of an op, named "faulty", first in the list. It changes the weights before the row is
// made, the Desc it is made for, arguments and launch before a run, or the outputs after it; always, or only when its
// trigger says so. One entry of a table:
//
//   fault<LinearOp>({"N30 zero for 32 to 1536 tokens", [](Run<LinearOp>& run) { if (..) zero(run.args.y); }})
//
// The number is that of the fault's story in the list of faults that reached users. run() reads and writes what args
// point to: on a GPU that is memory of host_memory.h. Faults of a GPU's own are whole rows (row_fault), made from the
// sources of the healthy ones (gpu/), or change where and when a healthy row runs (`blind`).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "host_memory.h"
#include "numeric/bf16.h"
#include "ops/cases.h"
#include "ops/row_list.h"
#include "ops/select.h"

namespace assay::faults {

// An element of a view of F32, BF16 or I32.
float get(const ops::ConstView& view, int64_t row, int64_t col);
void set(const ops::View& view, int64_t row, int64_t col, float value);
// Everything times a factor, columns [first, last).
void scale(const ops::View& view, float factor, int64_t first = 0, int64_t last = -1);
// A sum to which an accumulator of 16 bits adds a term.
float narrow_sum(float sum, float term);
// The value `ulps` representable values further from zero, in the view's dtype.
void nudge(const ops::View& view, int64_t row, int64_t col, int ulps);

// A weight with bytes of its own.
struct OwnWeight {
  ops::WeightSource source;
  std::vector<std::vector<std::byte>> bytes;
  // Copies of data and scales that may be written.
  std::byte* data(size_t matrix);
  std::byte* scales(size_t matrix);
};

// One run of a row.
template <class Op>
struct Run {
  typename Op::Args& args;  // before the run: may be changed. After it: outputs are there
  const typename Op::Desc& desc;
  int64_t index = 0;  // of the run, from 0, of this plan
  bool after = false;
  std::vector<HostVector<int32_t>>& scratch;  // lives for the run: changed copies of integer arrays
  ops::Launch& launch;                        // before the run: may be changed
};

template <class Op>
struct Fault {
  std::string name;
  std::function<void(Run<Op>&)> run = {};                      // called before and after each run
  std::function<void(OwnWeight&, size_t which)> weights = {};  // for each weight of the op, in order
  bool rare = false;                                           // may need many runs
  std::function<void(typename Op::Desc&)> desc = {};           // the row is made for another Desc
  bool blind = false;                                          // run() looks at no memory: it may run while recording
};

// What the self-test runs over.
struct Entry {
  std::string name, op;
  bool rare = false;
  std::function<void(const ops::DeviceCaps&)> install;  // puts the faulty row first, for such a device
  std::function<void()> remove;
  bool gpu_only = false;  // and on the GPU's own memory, recorded as steps are
};
// For any device; those of a GPU's rows come last, where they are built in.
std::vector<Entry> all_faults();
// The healthy row that the faulty one was last made from.
std::string_view wrapped_row();

namespace detail {

template <class Op>
const Fault<Op>*& active() {
  static const Fault<Op>* fault = nullptr;
  return fault;
}

ops::DeviceCaps& caps();  // of the device that faults are installed for
void set_wrapped_row(const char* name);

// The row that is wrapped: the portable one of a CPU, of a GPU the first that runs the Desc.
template <class Op>
const ops::Impl<Op>& base(const typename Op::Desc& desc) {
  for (const ops::Impl<Op>& impl : Op::impls()) {
    const bool portable = std::string_view(impl.name) == "cpu_portable";
    if (caps().backend == device::Backend::kCpu ? portable : !ops::refusal(impl, desc, caps())) return impl;
  }
  return Op::impls().back();
}

class Provider : public ops::WeightProvider {
 public:
  explicit Provider(ops::WeightProvider& real) : real_(real) {}
  void replace(ops::WeightId id, const std::function<void(OwnWeight&)>& change);
  const ops::WeightSource& source(ops::WeightId id) const override;
  Result<const ops::PackedWeight*> get(ops::WeightId id, ops::LayoutId layout) override;

 private:
  struct Replaced {
    ops::WeightId id;
    OwnWeight own;
    ops::PackedWeight packed;
    HostVector<std::byte> memory;
  };
  ops::WeightProvider& real_;
  std::vector<std::unique_ptr<Replaced>> replaced_;
};

template <class Op>
class FaultyPlan : public ops::Plan<typename Op::Args> {
 public:
  FaultyPlan(ops::PlanPtr<Op> healthy, std::unique_ptr<Provider> provider, const typename Op::Desc& desc)
      : provider_(std::move(provider)), healthy_(std::move(healthy)), desc_(desc), fault_(*active<Op>()) {}
  void enqueue(const typename Op::Args& args, const ops::Launch& launch) const override {
    if (!fault_.run) return healthy_->enqueue(args, launch);
    typename Op::Args changed_args = args;
    ops::Launch changed_launch = launch;
    std::vector<HostVector<int32_t>> scratch;
    Run<Op> run{changed_args, desc_, runs_++, false, scratch, changed_launch};
    if (!fault_.blind) wait_for(launch.stream);
    fault_.run(run);
    healthy_->enqueue(changed_args, changed_launch);
    if (!fault_.blind) wait_for(launch.stream);
    run.after = true;
    fault_.run(run);
  }

 private:
  std::unique_ptr<Provider> provider_;
  ops::PlanPtr<Op> healthy_;
  typename Op::Desc desc_;
  const Fault<Op>& fault_;
  mutable int64_t runs_ = 0;
};

}  // namespace detail

std::vector<ops::WeightId> ids_of(const ops::NoWeights&);
template <class Weights>
std::vector<ops::WeightId> ids_of(const Weights& weights) {
  static_assert(sizeof(Weights) % sizeof(ops::WeightId) == 0);  // Weights are ids and nothing else
  const auto* first = reinterpret_cast<const ops::WeightId*>(&weights);
  return {first, first + sizeof(Weights) / sizeof(ops::WeightId)};
}

template <class Op>
Entry fault(Fault<Op> description) {
  const auto kept = std::make_shared<Fault<Op>>(std::move(description));
  Entry entry{kept->name, std::string(Op::kName), kept->rare, {}, {}, kept->blind};
  entry.install = [kept](const ops::DeviceCaps& caps) {
    detail::active<Op>() = kept.get();
    detail::caps() = caps;
    ops::Impl<Op> row = Op::impls().back();
    row.name = "faulty";
    row.backend = caps.backend;
    row.order = [](const typename Op::Desc& desc) {
      return detail::caps().backend == device::Backend::kCpu ? ops::OrderId::kNone : detail::base<Op>(desc).order(desc);
    };
    row.layout = [](const typename Op::Desc& desc) -> ops::LayoutId {
      const ops::Impl<Op>& healthy = detail::base<Op>(desc);
      return healthy.layout == nullptr ? nullptr : healthy.layout(desc);
    };
    row.can_run = [](const typename Op::Desc& desc, const ops::DeviceCaps& device) {
      return ops::refusal(detail::base<Op>(desc), desc, device);
    };
    row.workspace_bytes = [](const typename Op::Desc& desc, const ops::Bucket& bucket, ops::MakeContext& context) {
      return detail::base<Op>(desc).workspace_bytes(desc, bucket, context);
    };
    row.make = [](const typename Op::Desc& desc, const ops::Bucket& bucket, const typename Op::Weights& weights,
                  ops::MakeContext& context) -> Result<ops::PlanPtr<Op>> {
      const ops::Impl<Op>& healthy = detail::base<Op>(desc);
      detail::set_wrapped_row(healthy.name);
      auto provider = std::make_unique<detail::Provider>(context.weights);
      const Fault<Op>& wrong = *detail::active<Op>();
      size_t which = 0;
      for (const ops::WeightId id : ids_of(weights)) {
        const size_t index = which++;
        if (id == ops::WeightId::kNone || !wrong.weights) continue;
        provider->replace(id, [&](OwnWeight& own) { wrong.weights(own, index); });
      }
      ops::MakeContext own{context.caps, *provider, context.selector};
      typename Op::Desc made_for = desc;
      if (wrong.desc) wrong.desc(made_for);
      ASSAY_ASSIGN(ops::PlanPtr<Op> plan, healthy.make(made_for, bucket, weights, own));
      return ops::PlanPtr<Op>(std::make_unique<detail::FaultyPlan<Op>>(std::move(plan), std::move(provider), desc));
    };
    ops::test_rows<Op>().insert(ops::test_rows<Op>().begin(), row);
  };
  entry.remove = [] {
    ops::test_rows<Op>().clear();
    detail::active<Op>() = nullptr;
  };
  return entry;
}

// A whole row that is wrong, in place of the healthy one of the same name.
template <class Op>
Entry row_fault(std::string name, const ops::Impl<Op>& wrong, bool rare) {
  Entry entry{std::move(name), std::string(Op::kName), rare, {}, {}, true};
  entry.install = [&wrong](const ops::DeviceCaps& caps) {
    detail::caps() = caps;
    detail::set_wrapped_row(wrong.name);
    ops::Impl<Op> row = wrong;
    row.name = "faulty";
    ops::test_rows<Op>().insert(ops::test_rows<Op>().begin(), row);
  };
  entry.remove = [] { ops::test_rows<Op>().clear(); };
  return entry;
}

}  // namespace assay::faults

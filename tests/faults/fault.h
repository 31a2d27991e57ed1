// Faults: wrong rows on purpose, to see that the proof can fail. Built only with ASSAY_FAULTS=ON.
//
// A fault wraps a healthy row of an op, named "faulty", first in the list. It changes the weights before the row is
// made, the Desc it is made for, arguments and launch before a run, or the outputs after it; always, or only when its
// trigger says so. One entry of a table:
//
//   fault<LinearOp>({"N30 zero for 32 to 1536 tokens", [](Run<LinearOp>& run) { if (..) zero(run.args.y); }})
//
// The number is that of the fault's story in the list of faults that reached users. Host memory only.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

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
  std::vector<std::vector<int32_t>>& scratch;  // lives for the run: changed copies of integer arrays
  ops::Launch& launch;                         // before the run: may be changed
};

template <class Op>
struct Fault {
  std::string name;
  std::function<void(Run<Op>&)> run = {};                      // called before and after each run
  std::function<void(OwnWeight&, size_t which)> weights = {};  // for each weight of the op, in order
  bool rare = false;                                           // may need many runs
  std::function<void(typename Op::Desc&)> desc = {};           // the row is made for another Desc
};

// What the self-test runs over.
struct Entry {
  std::string name, op;
  bool rare = false;
  std::function<void()> install;  // puts the faulty row first
  std::function<void()> remove;
};
std::vector<Entry> all_faults();

namespace detail {

template <class Op>
const Fault<Op>*& active() {
  static const Fault<Op>* fault = nullptr;
  return fault;
}

// The row that is wrapped: the first portable one.
template <class Op>
const ops::Impl<Op>& base() {
  for (const ops::Impl<Op>& impl : Op::impls()) {
    if (std::string_view(impl.name) == "cpu_portable") return impl;
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
    std::vector<std::byte> memory;
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
    typename Op::Args changed = args;
    ops::Launch changed_launch = launch;
    std::vector<std::vector<int32_t>> scratch;
    Run<Op> run{changed, desc_, runs_++, false, scratch, changed_launch};
    if (fault_.run) fault_.run(run);
    healthy_->enqueue(changed, changed_launch);
    run.after = true;
    if (fault_.run) fault_.run(run);
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
  Entry entry{kept->name, std::string(Op::kName), kept->rare, {}, {}};
  entry.install = [kept] {
    detail::active<Op>() = kept.get();
    ops::Impl<Op> row = detail::base<Op>();
    row.name = "faulty";
    row.order = [](const typename Op::Desc&) { return ops::OrderId::kNone; };
    row.make = [](const typename Op::Desc& desc, const ops::Bucket& bucket, const typename Op::Weights& weights,
                  ops::MakeContext& context) -> Result<ops::PlanPtr<Op>> {
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
      ASSAY_ASSIGN(ops::PlanPtr<Op> healthy, detail::base<Op>().make(made_for, bucket, weights, own));
      return ops::PlanPtr<Op>(std::make_unique<detail::FaultyPlan<Op>>(std::move(healthy), std::move(provider), desc));
    };
    ops::test_rows<Op>().insert(ops::test_rows<Op>().begin(), row);
  };
  entry.remove = [] {
    ops::test_rows<Op>().clear();
    detail::active<Op>() = nullptr;
  };
  return entry;
}

}  // namespace assay::faults

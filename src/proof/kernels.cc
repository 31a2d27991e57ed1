#include "proof/kernels.h"

#include <optional>

#include "proof/chains.h"

namespace assay::proof {
namespace {

constexpr int64_t kMostSynthetic = int64_t{64} << 20;

template <class Op>
Verdict blank(const ops::Impl<Op>& impl, const DescGroup<Op>& group) {
  Verdict verdict;
  verdict.op = Op::kName;
  verdict.desc = describe(group.desc);
  verdict.row = impl.name;
  verdict.bucket = group.bucket;
  verdict.order = static_cast<uint64_t>(impl.order(group.desc));
  verdict.light = is_light(impl.name);
  return verdict;
}

// All rows of one Desc: they share weights, cases and expected values.
template <class Op>
class DescProof {
 public:
  DescProof(const DescGroup<Op>& group, device::Device& device, ops::WeightProvider& weights,
            const KernelOptions& options)
      : group_(group), device_(device), real_(weights), options_(options), synthetic_(device) {}

  Verdict prove(const ops::Impl<Op>& impl) {
    Verdict verdict = blank(impl, group_);
    int64_t start = now_us();
    verdict.state = State::kPassed;
    if (!provider_) prepare();
    auto& cases = cases_[verdict.light ? 1 : 0];
    if (!cases) {
      const ops::Effort effort = verdict.light   ? ops::Effort::kLight
                                 : options_.full ? ops::Effort::kFull
                                                 : ops::Effort::kNormal;
      cases = make_cases(group_.desc, weights_, {device_, *provider_, group_.bucket, effort, seed()});
    }
    verdict.cases_milliseconds = static_cast<double>(now_us() - start) / 1e3;
    start = now_us();
    auto row = ReadyRow<Op>::make(impl, group_.desc, group_.bucket, weights_, device_, *provider_);
    if (row.ok()) {
      run_chains(*row, *cases, {options_.repeats, options_.row_budget_ms, true}, verdict);
      if (verdict.state == State::kPassed && !verdict.light) verdict.timings = time_row(*row, *cases);
    } else {
      verdict.state = State::kFailed;
      verdict.reason = "contact: it cannot be made: " + row.error().message();
    }
    verdict.milliseconds = static_cast<double>(now_us() - start) / 1e3;
    return verdict;
  }

 private:
  uint64_t seed() const { return hash64(describe(group_.desc), options_.seed); }

  void prepare() {
    weights_ = group_.weights.front();
    provider_ = &real_;
    int64_t bytes = 0;
    for (const ops::WeightId* id : ops::weight_ids(weights_)) {
      if (*id == ops::WeightId::kNone) continue;
      for (const auto& matrix : real_.source(*id).matrices) bytes += static_cast<int64_t>(matrix.data.size());
    }
    if (bytes > kMostSynthetic) return;
    ops::CaseRandom random(seed());
    weights_ = synthetic(group_.desc, synthetic_, random);
    provider_ = &synthetic_;
  }

  const DescGroup<Op>& group_;
  device::Device& device_;
  ops::WeightProvider& real_;
  const KernelOptions& options_;
  ops::CaseWeights synthetic_;
  typename Op::Weights weights_{};
  ops::WeightProvider* provider_ = nullptr;
  std::optional<std::vector<ops::Case<Op>>> cases_[2];
};

template <class Op>
void prove_op(const ops::Instances& instances, device::Device& device, ops::WeightProvider& weights,
              const KernelOptions& options, KernelSink& sink) {
  for (const DescGroup<Op>& group : groups<Op>(instances)) {
    const std::string desc = describe(group.desc);
    DescProof<Op> proof(group, device, weights, options);
    for (const ops::Impl<Op>* impl : ops::rows<Op>()) {
      if (!sink.wanted(Op::kName, desc, impl->name)) continue;
      if (const ops::Refusal refused = ops::refusal(*impl, group.desc, device.caps())) {
        Verdict verdict = blank(*impl, group);
        verdict.reason = *refused;
        sink.done(std::move(verdict));
        continue;
      }
      sink.begin(Op::kName, desc, impl->name);
      sink.done(proof.prove(*impl));
    }
  }
}

}  // namespace

void prove_kernels(const ops::Instances& instances, device::Device& device, ops::WeightProvider& weights,
                   const KernelOptions& options, KernelSink& sink) {
  ops::for_each_op([&]<class Op>() {
    if constexpr (ops::HasCases<Op>) prove_op<Op>(instances, device, weights, options, sink);
  });
}

std::vector<Verdict> list_rows(const ops::Instances& instances, const device::DeviceCaps& caps) {
  std::vector<Verdict> list;
  ops::for_each_op([&]<class Op>() {
    if constexpr (ops::HasCases<Op>) {
      for (const DescGroup<Op>& group : groups<Op>(instances)) {
        for (const ops::Impl<Op>* impl : ops::rows<Op>()) {
          Verdict verdict = blank(*impl, group);
          const ops::Refusal refused = ops::refusal(*impl, group.desc, caps);
          if (refused) verdict.reason = *refused;
          verdict.state = refused ? State::kRefused : State::kPassed;
          list.push_back(std::move(verdict));
        }
      }
    }
  });
  return list;
}

}  // namespace assay::proof

#include "proof/kernels.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <utility>

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

// One Desc, whatever its op.
class DescProof {
 public:
  virtual ~DescProof() = default;
  virtual void prepare(KernelSink& sink) = 0;
  virtual void prove(KernelSink& sink) = 0;
};

// All rows of one Desc: they share weights, cases and expected values.
template <class Op>
class DescProofOf : public DescProof {
 public:
  DescProofOf(DescGroup<Op> group, device::Device& device, ops::WeightProvider& weights, const KernelOptions& options)
      : group_(std::move(group)),
        desc_(describe(group_.desc)),
        device_(device),
        real_(weights),
        options_(options),
        synthetic_(device) {}

  // Touches nothing that another's prepare() does, so several may run at once.
  void prepare(KernelSink& sink) override {
    for (const ops::Impl<Op>* impl : ops::rows<Op>()) {
      if (sink.wanted(Op::kName, desc_, impl->name) && !ops::refusal(*impl, group_.desc, device_.caps())) {
        make_cases_for(is_light(impl->name));
      }
    }
  }

  void prove(KernelSink& sink) override {
    for (const ops::Impl<Op>* impl : ops::rows<Op>()) {
      if (!sink.wanted(Op::kName, desc_, impl->name)) continue;
      if (const ops::Refusal refused = ops::refusal(*impl, group_.desc, device_.caps())) {
        Verdict verdict = blank(*impl, group_);
        verdict.reason = *refused;
        sink.done(std::move(verdict));
        continue;
      }
      make_cases_for(is_light(impl->name));
      sink.begin(Op::kName, desc_, impl->name);
      sink.done(prove_row(*impl));
    }
  }

 private:
  uint64_t seed() const { return hash64(desc_, options_.seed); }

  void make_cases_for(bool light) {
    auto& cases = cases_[light ? 1 : 0];
    if (cases) return;
    const int64_t start = now_us();
    if (provider_ == nullptr) choose_weights();
    const ops::Effort effort = light ? ops::Effort::kLight : options_.full ? ops::Effort::kFull : ops::Effort::kNormal;
    cases = make_cases(group_.desc, weights_, {device_, *provider_, group_.bucket, effort, seed()});
    cases_milliseconds_ += static_cast<double>(now_us() - start) / 1e3;
  }

  void choose_weights() {
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

  Verdict prove_row(const ops::Impl<Op>& impl) {
    Verdict verdict = blank(impl, group_);
    verdict.state = State::kPassed;
    verdict.cases_milliseconds = std::exchange(cases_milliseconds_, 0);
    auto& cases = *cases_[verdict.light ? 1 : 0];
    const int64_t start = now_us();
    auto row = ReadyRow<Op>::make(impl, group_.desc, group_.bucket, weights_, device_, *provider_);
    if (row.ok()) {
      run_chains(*row, cases, {options_.repeats, options_.row_budget_ms, true, options_.recorded}, verdict);
      if (verdict.state == State::kPassed && !verdict.light) verdict.timings = time_row(*row, cases);
    } else {
      verdict.state = State::kFailed;
      verdict.reason = "contact: it cannot be made: " + row.error().message();
    }
    verdict.milliseconds = static_cast<double>(now_us() - start) / 1e3;
    return verdict;
  }

  DescGroup<Op> group_;
  std::string desc_;
  device::Device& device_;
  ops::WeightProvider& real_;
  const KernelOptions& options_;
  ops::CaseWeights synthetic_;
  typename Op::Weights weights_{};
  ops::WeightProvider* provider_ = nullptr;
  std::optional<std::vector<ops::Case<Op>>> cases_[2];
  double cases_milliseconds_ = 0;  // since the last verdict
};

}  // namespace

// Expected values take one thread, and rows are timed: so the Descs are prepared two at once, and then proven with
// nothing beside them.
void prove_kernels(const ops::Instances& instances, device::Device& device, ops::WeightProvider& weights,
                   const KernelOptions& options, KernelSink& sink) {
  std::vector<std::unique_ptr<DescProof>> proofs;
  ops::for_each_op([&]<class Op>() {
    if constexpr (ops::HasCases<Op>) {
      for (DescGroup<Op>& group : groups<Op>(instances)) {
        proofs.push_back(std::make_unique<DescProofOf<Op>>(std::move(group), device, weights, options));
      }
    }
  });
  for (size_t i = 0; i < proofs.size(); i += 2) {
    const auto pair = std::span(proofs).subspan(i, std::min<size_t>(2, proofs.size() - i));
    {
      std::jthread beside;
      if (pair.size() > 1) beside = std::jthread([&] { pair[1]->prepare(sink); });
      pair[0]->prepare(sink);
    }
    for (std::unique_ptr<DescProof>& proof : pair) {
      proof->prove(sink);
      proof.reset();
    }
  }
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

#include "proof/certify.h"

#include <algorithm>
#include <set>

#include "base/clock.h"
#include "base/hash.h"
#include "proof/chains.h"

namespace assay::proof {
namespace {

bool forced_to(const CertifyOptions& options, std::string_view op, std::string_view row, bool& any) {
  bool mine = false;
  for (const auto& [forced_op, forced_row] : options.forced) {
    if (forced_op != op && forced_op != "*") continue;
    any |= forced_op == op;
    mine |= forced_row == row;
  }
  any |= mine;
  return mine;
}

// Every verdict as it comes, into its place in the report.
class Filler : public KernelSink {
 public:
  Filler(std::vector<Verdict>& verdicts, std::set<size_t> wanted, const CertifyOptions& options)
      : verdicts_(verdicts), wanted_(std::move(wanted)), options_(options) {}
  bool wanted(std::string_view op, const std::string& desc, std::string_view row) override {
    const size_t i = index(op, desc, row);
    return i < verdicts_.size() && wanted_.contains(i);
  }
  void begin(std::string_view op, const std::string& desc, std::string_view row) override {
    if (options_.progress) {
      options_.progress(fmt::format("proving {}/{}: {} {} {}", done_ + 1, wanted_.size(), op, desc, row));
    }
  }
  void done(Verdict verdict) override {
    ++done_;
    const size_t i = index(verdict.op, verdict.desc, verdict.row);
    if (i < verdicts_.size()) verdicts_[i] = std::move(verdict);
  }

 private:
  size_t index(std::string_view op, const std::string& desc, std::string_view row) const {
    const auto found = std::find_if(verdicts_.begin(), verdicts_.end(),
                                    [&](const Verdict& v) { return v.op == op && v.desc == desc && v.row == row; });
    return static_cast<size_t>(found - verdicts_.begin());
  }
  std::vector<Verdict>& verdicts_;
  std::set<size_t> wanted_;
  const CertifyOptions& options_;
  size_t done_ = 0;
};

// Largest over smallest non-zero block scale, or magnitude of a first row; 0 where there is nothing to compare.
int scale_range(const ops::WeightSource& source) {
  int low = 256, high = 0;
  for (const numeric::EncodedMatrix& matrix : source.matrices) {
    for (std::byte scale : matrix.scales) {
      const int code = std::to_integer<int>(scale);
      if (code == 0) continue;
      low = std::min(low, code);
      high = std::max(high, code);
    }
  }
  return std::max(0, high - low);
}

template <class Op>
std::vector<size_t> chosen_tensors(const DescGroup<Op>& group, const ops::WeightProvider& provider, bool full) {
  std::set<size_t> chosen;
  const size_t count = group.weights.size();
  if (full) {
    for (size_t i = 0; i < count; ++i) chosen.insert(i);
  } else {
    chosen = {0, count - 1};
    int widest = -1;
    size_t index = 0;
    for (size_t i = 0; i < count; ++i) {
      typename Op::Weights weights = group.weights[i];
      const auto ids = ops::weight_ids(weights);
      const int range = ids.empty() ? 0 : scale_range(provider.source(*ids.front()));
      if (range > widest) widest = range, index = i;
    }
    chosen.insert(index);
  }
  return {chosen.begin(), chosen.end()};
}

// One tensor through one row.
template <class Op>
void prove_tensor(const DescGroup<Op>& group, const typename Op::Weights& weights, const ops::Impl<Op>& impl,
                  device::Device& device, ops::WeightProvider& provider, const KernelOptions& options,
                  WeightVerdict& verdict) {
  const int64_t start = now_us();
  const ops::Effort effort = options.full ? ops::Effort::kFull : ops::Effort::kWeights;
  auto cases = make_cases(group.desc, weights, {device, provider, group.bucket, effort, verdict.hash | 1});
  auto row = ReadyRow<Op>::make(impl, group.desc, group.bucket, weights, device, provider);
  if (row.ok()) {
    Verdict chains;
    chains.state = State::kPassed;
    run_chains(*row, cases, {1, 0}, chains);
    verdict.state = chains.state;
    verdict.reason = chains.reason;
    verdict.error_over_bound = chains.worst.ratio;
  } else {
    verdict.state = State::kFailed;
    verdict.reason = row.error().message();
  }
  verdict.milliseconds = static_cast<double>(now_us() - start) / 1e3;
}

// Whether all chosen tensors of a Desc pass through this row.
template <class Op>
bool prove_row_tensors(const DescGroup<Op>& group, const ops::Impl<Op>& impl, device::Device& device,
                       ops::WeightProvider& provider, Receipt& receipt, const KernelOptions& options, Report& report,
                       std::string& reason) {
  if constexpr (requires(typename Op::Weights & w) { requires std::same_as<typename Op::Weights, ops::NoWeights>; }) {
    return true;
  }
  for (size_t index : chosen_tensors(group, provider, options.full)) {
    typename Op::Weights weights = group.weights[index];
    WeightVerdict verdict;
    verdict.op = Op::kName;
    verdict.desc = describe(group.desc);
    verdict.row = impl.name;
    const ops::LayoutId layout = impl.layout == nullptr ? nullptr : impl.layout(group.desc);
    verdict.layout = layout == nullptr ? "vector" : std::string(layout->name);
    for (const ops::WeightId* id : ops::weight_ids(weights)) {
      if (*id == ops::WeightId::kNone) continue;
      const ops::WeightSource& source = provider.source(*id);
      verdict.weight += (verdict.weight.empty() ? "" : ", ") + source.name;
      verdict.hash = hash_fold(verdict.hash, weight_hash(source));
    }
    if (const WeightVerdict* known = receipt.weight(verdict)) {
      report.weights.push_back(*known);
      continue;
    }
    prove_tensor(group, weights, impl, device, provider, options, verdict);
    report.weights.push_back(verdict);
    if (verdict.state == State::kFailed) {
      reason = "weights: " + verdict.weight + ": " + verdict.reason;
      return false;
    }
  }
  return true;
}

// The rows of one Desc from the first that passed on, until one also passes on the model's tensors.
template <class Op>
void prove_desc_weights(const DescGroup<Op>& group, device::Device& device, ops::WeightProvider& provider,
                        Receipt& receipt, const CertifyOptions& options, Report& report) {
  const std::string desc = describe(group.desc);
  bool any_forced = false;
  for (const ops::Impl<Op>* impl : ops::rows<Op>()) forced_to(options, Op::kName, impl->name, any_forced);
  for (const ops::Impl<Op>* impl : ops::rows<Op>()) {
    bool ignored = false;
    if (any_forced && !forced_to(options, Op::kName, impl->name, ignored)) continue;
    const auto verdict = std::find_if(report.verdicts.begin(), report.verdicts.end(), [&](const Verdict& v) {
      return v.op == Op::kName && v.desc == desc && v.row == impl->name;
    });
    if (verdict == report.verdicts.end() || verdict->state != State::kPassed) continue;
    std::string reason;
    if (prove_row_tensors(group, *impl, device, provider, receipt, options.kernels, report, reason)) return;
    verdict->state = State::kFailed;
    verdict->reason = reason;
  }
}

}  // namespace

uint64_t weight_hash(const ops::WeightSource& source) {
  uint64_t hash = source.matrices.size();
  for (const numeric::EncodedMatrix& matrix : source.matrices) {
    hash = hash64(matrix.data, hash);
    hash = hash64(matrix.scales, hash);
    hash = hash64(std::as_bytes(std::span(&matrix.global_scale, 1)), hash);
  }
  return hash;
}

Result<void> Certifier::run(Report& report) {
  prove_kernels(report);
  if (options_.only_op.empty() && options_.only_row.empty()) prove_weights(report);
  for (const Verdict& verdict : report.verdicts) {
    receipt_.add(verdict, options_.kernels.full ? "full" : "normal");
  }
  for (const WeightVerdict& verdict : report.weights) receipt_.add(verdict);
  return check_forced(report);
}

void Certifier::prove_kernels(Report& report) {
  for (Verdict& row : list_rows(instances_, device_.caps())) {
    const bool asked = (options_.only_op.empty() || options_.only_op == row.op) &&
                       (options_.only_row.empty() || options_.only_row == row.row);
    if (asked) report.verdicts.push_back(std::move(row));
  }
  std::vector<Verdict> unknown;
  std::set<size_t> wanted;
  for (size_t i = 0; i < report.verdicts.size(); ++i) {
    Verdict& row = report.verdicts[i];
    if (row.state == State::kRefused) continue;
    const Verdict* known = receipt_.kernel(row, options_.kernels.full ? "full" : "normal");
    if (known != nullptr && known->repeats >= 2) {
      row = *known;
      continue;
    }
    unknown.push_back(row);
    wanted.insert(i);
  }
  if (!unknown.empty()) {
    say(fmt::format(
        "proving {} rows, {} known from the receipt", unknown.size(),
        std::count_if(report.verdicts.begin(), report.verdicts.end(), [](const Verdict& v) { return v.remembered; })));
    Filler filler(report.verdicts, std::move(wanted), options_);
    if (options_.contact.command.empty()) {
      proof::prove_kernels(instances_, device_, weights_, options_.kernels, filler);
    } else {
      contact_rows(unknown, options_.contact, filler);
    }
  }
  judge_orders(report.verdicts);
}

void Certifier::prove_weights(Report& report) {
  say("proving the weights");
  ops::for_each_op([&]<class Op>() {
    if constexpr (ops::HasCases<Op>) {
      for (const DescGroup<Op>& group : groups<Op>(instances_)) {
        prove_desc_weights<Op>(group, device_, weights_, receipt_, options_, report);
      }
    }
  });
}

Result<void> Certifier::check_forced(const Report& report) const {
  if (options_.allow_unproven) return {};
  for (const Verdict& verdict : report.verdicts) {
    bool any = false;
    if (verdict.state != State::kFailed || !forced_to(options_, verdict.op, verdict.row, any)) continue;
    return Error{ErrorKind::kNumerical,
                 "the forced row failed its proof",
                 verdict.op + " " + verdict.desc + " " + verdict.row,
                 verdict.reason,
                 "a row that passes",
                 "--allow-unproven serves with it all the same"};
  }
  return {};
}

ops::Selector::Judge Certifier::judge(const Report& report, const CertifyOptions& options) {
  return [verdicts = report.verdicts, forced = options](std::string_view op, const std::string& desc,
                                                        std::string_view row) -> ops::Refusal {
    bool any = false;
    if (forced.allow_unproven && forced_to(forced, op, row, any)) return std::nullopt;
    for (const Verdict& v : verdicts) {
      if (v.op != op || v.desc != desc || v.row != row) continue;
      if (v.state == State::kPassed) return std::nullopt;
      return std::string(state_name(v.state)) + ": " + v.reason;
    }
    return "not proven for this Desc";
  };
}

}  // namespace assay::proof

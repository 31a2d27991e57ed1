#include "proof/certify.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <span>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/hash.h"
#include "ops/case_rows.h"
#include "proof/chains.h"
#include "proof/choose.h"

namespace assay::proof {
namespace {

std::string_view effort_name(const KernelOptions& options) { return options.full ? "full" : "normal"; }

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
    if (first_us_ == 0) first_us_ = now_us();
    if (options_.progress) {
      options_.progress(fmt::format("proving {}/{}: {} {} {}", done_ + 1, wanted_.size(), op, desc, row));
    }
  }
  void done(Verdict verdict) override {
    ++done_;
    const size_t i = index(verdict.op, verdict.desc, verdict.row);
    if (i < verdicts_.size()) verdicts_[i] = std::move(verdict);
  }

  int64_t first_us() const { return first_us_; }  // when the first row began; 0: none did

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
  int64_t first_us_ = 0;
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

// The model's own tensors, and what is fed to their matrices.
struct Tensors {
  device::Device& device;
  ops::WeightProvider& provider;
  std::function<std::vector<std::vector<double>>()> make_activations;
  std::vector<std::vector<double>> activations;

  // For the first tensor that no receipt knows: they take a run of the reference rows.
  void need_activations() {
    if (make_activations) activations = std::exchange(make_activations, nullptr)();
  }
};

// Rows of the model's embedding table for a text, each divided by its root mean square.
std::vector<std::vector<double>> embeddings_of(const std::vector<int32_t>& text, const ops::Instances& instances,
                                               const ops::WeightProvider& provider) {
  constexpr size_t kMost = 16;
  std::vector<std::vector<double>> rows;
  if (instances.of<ops::EmbedOp>().empty()) return rows;
  const ops::WeightSource& table = provider.source(instances.of<ops::EmbedOp>().front().weights.table);
  ops::CaseRows decoded(table.matrices, table.matrices.front().cols);
  for (size_t i = 0; i < std::min(text.size(), kMost); ++i) {
    if (text[i] < 0 || text[i] >= table.rows()) continue;
    const auto row = decoded.row(text[i]);
    double squares = 0;
    for (double value : row) squares += value * value;
    if (squares == 0) continue;
    const double factor = std::sqrt(static_cast<double>(row.size()) / squares);
    std::vector<double>& kept = rows.emplace_back(row.begin(), row.end());
    for (double& value : kept) value *= factor;
  }
  return rows;
}

// One of each list after the other.
std::vector<std::vector<double>> in_turn(std::vector<std::vector<double>> a, std::vector<std::vector<double>> b) {
  std::vector<std::vector<double>> all;
  for (size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    if (i < a.size()) all.push_back(std::move(a[i]));
    if (i < b.size()) all.push_back(std::move(b[i]));
  }
  return all;
}

// One tensor, or the few of one instance, and its way through a row.
template <class Op>
struct TensorProof {
  typename Op::Weights weights;
  WeightVerdict verdict;
  std::vector<ops::Case<Op>> cases;

  // Touches nothing that another's prepare() does, so several may run at once.
  void prepare(const DescGroup<Op>& group, const Tensors& tensors, bool full) {
    const int64_t start = now_us();
    const ops::Effort effort = full ? ops::Effort::kFull : ops::Effort::kWeights;
    cases = make_cases(group.desc, weights,
                       {tensors.device, tensors.provider, group.bucket, effort, verdict.hash | 1, tensors.activations});
    verdict.milliseconds = static_cast<double>(now_us() - start) / 1e3;
  }

  void run(const DescGroup<Op>& group, const ops::Impl<Op>& impl, const Tensors& tensors) {
    const int64_t start = now_us();
    auto row = ReadyRow<Op>::make(impl, group.desc, group.bucket, weights, tensors.device, tensors.provider);
    if (row.ok()) {
      Verdict chains;
      chains.state = State::kPassed;
      run_chains(*row, cases, {1, 0, false}, chains);
      verdict.state = chains.state;
      verdict.reason = chains.reason;
      verdict.error_over_bound = chains.worst.ratio;
    } else {
      verdict.state = State::kFailed;
      verdict.reason = row.error().message();
    }
    cases.clear();
    verdict.milliseconds += static_cast<double>(now_us() - start) / 1e3;
  }
};

// Whose weights, in which layout of which row.
template <class Op>
TensorProof<Op> tensor_proof(const DescGroup<Op>& group, const typename Op::Weights& weights, const ops::Impl<Op>& impl,
                             const Tensors& tensors) {
  TensorProof<Op> proof{weights, {}, {}};
  WeightVerdict& verdict = proof.verdict;
  verdict.op = Op::kName;
  verdict.desc = describe(group.desc);
  verdict.row = impl.name;
  const ops::LayoutId layout = impl.layout == nullptr ? nullptr : impl.layout(group.desc);
  verdict.layout = layout == nullptr ? "vector" : std::string(layout->name);
  for (const ops::WeightId* id : ops::weight_ids(proof.weights)) {
    if (*id == ops::WeightId::kNone) continue;
    const ops::WeightSource& source = tensors.provider.source(*id);
    verdict.weight += (verdict.weight.empty() ? "" : ", ") + source.name;
    verdict.hash = hash_fold(verdict.hash, weight_hash(source));
  }
  return proof;
}

// Whether all chosen tensors of a Desc pass through this row. Expected values take one thread: they are made for two
// tensors at once.
template <class Op>
bool prove_row_tensors(const DescGroup<Op>& group, const ops::Impl<Op>& impl, Tensors& tensors, const Receipt& receipt,
                       const CertifyOptions& options, Report& report, std::string& reason) {
  if constexpr (requires(typename Op::Weights & w) { requires std::same_as<typename Op::Weights, ops::NoWeights>; }) {
    return true;
  }
  std::vector<TensorProof<Op>> unknown;
  const auto settle = [&](const WeightVerdict& verdict) {
    report.weights.push_back(verdict);
    if (verdict.state != State::kFailed) return true;
    reason = "weights: " + verdict.weight + ": " + verdict.reason;
    return false;
  };
  for (size_t index : chosen_tensors(group, tensors.provider, options.kernels.full)) {
    TensorProof<Op> proof = tensor_proof(group, group.weights[index], impl, tensors);
    const WeightVerdict* known = receipt.weight(proof.verdict);
    if (known == nullptr || (known->state == State::kFailed && options.retry_failed)) {
      unknown.push_back(std::move(proof));
    } else if (!settle(*known)) {
      return false;
    }
  }
  if (!unknown.empty()) tensors.need_activations();
  for (size_t i = 0; i < unknown.size(); i += 2) {
    const auto pair = std::span(unknown).subspan(i, std::min<size_t>(2, unknown.size() - i));
    {
      std::jthread beside;
      if (pair.size() > 1) beside = std::jthread([&] { pair[1].prepare(group, tensors, options.kernels.full); });
      pair[0].prepare(group, tensors, options.kernels.full);
    }
    for (TensorProof<Op>& proof : pair) {
      proof.run(group, impl, tensors);
      if (!settle(proof.verdict)) return false;
    }
  }
  return true;
}

Verdict* find_verdict(Report& report, std::string_view op, const std::string& desc, std::string_view row) {
  const auto found = std::find_if(report.verdicts.begin(), report.verdicts.end(),
                                  [&](const Verdict& v) { return v.op == op && v.desc == desc && v.row == row; });
  return found == report.verdicts.end() ? nullptr : &*found;
}

bool any_passed(const Report& report, std::string_view op, const std::string& desc) {
  return std::any_of(report.verdicts.begin(), report.verdicts.end(),
                     [&](const Verdict& v) { return v.op == op && v.desc == desc && v.state == State::kPassed; });
}

// One Desc of the model: who may serve it, and how a candidate is tried on the model's own tensors.
struct Entrant {
  std::string_view op;
  std::string desc;
  ops::Bucket bucket;
  std::function<Contest()> enter;  // with the rows that have passed so far
  std::function<bool(std::string_view row, std::string& reason)> prove_tensors;
  std::string proven;  // row that passed on the tensors
};

template <class Op>
Candidate candidate(const DescGroup<Op>& group, const ops::Impl<Op>& impl, const Verdict& verdict,
                    const ops::WeightProvider& provider) {
  Candidate made{impl.name, predicted_us(verdict), {}};
  const ops::LayoutId layout = impl.layout == nullptr ? nullptr : impl.layout(group.desc);
  if (layout == nullptr) return made;
  for (typename Op::Weights weights : group.weights) {
    const ops::WeightId matrix = *ops::weight_ids(weights).front();
    made.packings.push_back({matrix, layout, layout->bytes(provider.source(matrix))});
  }
  return made;
}

// Where a row is forced, no other takes part.
template <class Op>
Contest make_contest(const DescGroup<Op>& group, const ops::WeightProvider& provider, const Receipt& receipt,
                     const CertifyOptions& options, Report& report) {
  const std::string desc = describe(group.desc);
  const std::string_view forced = options.forced.row(Op::kName, desc);
  Contest contest{receipt.choice(Op::kName, desc, group.bucket), {}};
  for (const ops::Impl<Op>* impl : ops::rows<Op>()) {
    if (!forced.empty() && forced != impl->name) continue;
    const Verdict* verdict = find_verdict(report, Op::kName, desc, impl->name);
    if (verdict == nullptr || verdict->state != State::kPassed) continue;
    contest.candidates.push_back(candidate(group, *impl, *verdict, provider));
  }
  return contest;
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
  report.partial = !options_.whole();
  ASSAY_TRY(check_asked());
  prove_kernels(report);
  if (options_.whole()) choose_and_prove_weights(report);
  for (const WeightVerdict& verdict : report.weights) receipt_.add(verdict);
  return check_forced(report);
}

// That the model has what was asked for.
Result<void> Certifier::check_asked() const {
  std::set<std::string> ops, rows;
  for (const Verdict& row : list_rows(instances_, device_.caps())) {
    ops.insert(row.op);
    if (options_.only_op.empty() || options_.only_op == row.op) rows.insert(row.row);
  }
  const auto unknown = [](const std::string& flag, const std::string& got, const std::set<std::string>& known) {
    return Error{ErrorKind::kInvalidArgument,
                 "the model has nothing of this name",
                 flag,
                 got,
                 fmt::format("one of {}", fmt::join(known, ", ")),
                 ""};
  };
  if (!options_.only_op.empty() && !ops.contains(options_.only_op)) return unknown("--op", options_.only_op, ops);
  if (!options_.only_row.empty() && !rows.contains(options_.only_row)) return unknown("--row", options_.only_row, rows);
  return {};
}

void Certifier::prove_kernels(Report& report) {
  for (Verdict& row : list_rows(instances_, device_.caps())) {
    const bool asked = (options_.only_op.empty() || options_.only_op == row.op) &&
                       (options_.only_row.empty() || options_.only_row == row.row);
    if (asked) report.verdicts.push_back(std::move(row));
  }
  std::vector<size_t> wanted;
  for (size_t i = 0; i < report.verdicts.size(); ++i) {
    Verdict& row = report.verdicts[i];
    if (row.state == State::kRefused) continue;
    if (needless(report, row)) {
      row.state = State::kSkipped;
      row.reason = "slow by intent: it is run where no other row passes, and with --full";
    } else {
      wanted.push_back(i);
    }
  }
  prove_rows(report, wanted);
  wanted.clear();
  for (size_t i = 0; i < report.verdicts.size(); ++i) {
    const Verdict& row = report.verdicts[i];
    if (row.state == State::kSkipped && !any_passed(report, row.op, row.desc)) wanted.push_back(i);
  }
  prove_rows(report, wanted);
}

// Whether a row is slow by intent and others can run, unless somebody asks for it.
bool Certifier::needless(const Report& report, const Verdict& row) const {
  const bool asked =
      options_.kernels.full || !options_.only_row.empty() || options_.forced.row(row.op, row.desc) == row.row;
  if (!row.light || asked) return false;
  return std::any_of(report.verdicts.begin(), report.verdicts.end(), [&](const Verdict& other) {
    return other.op == row.op && other.desc == row.desc && !other.light && other.state != State::kRefused;
  });
}

// Whether what a receipt says of a row need not be seen again. A number of repeats that was asked for must have run.
bool Certifier::enough(const Verdict& known) const {
  if (known.state == State::kFailed) return !options_.retry_failed;
  return known.repeats >= (options_.kernels.row_budget_ms > 0 ? 2 : options_.kernels.repeats);
}

// The evidence about these rows, from the receipt or made now, into the report and the receipt.
void Certifier::prove_rows(Report& report, const std::vector<size_t>& rows) {
  std::vector<Verdict> unknown;
  std::set<size_t> wanted;
  for (size_t i : rows) {
    Verdict& row = report.verdicts[i];
    const Verdict* known = receipt_.kernel(row, effort_name(options_.kernels));
    if (known != nullptr && enough(*known)) {
      row = *known;
      continue;
    }
    unknown.push_back(row);
    wanted.insert(i);
  }
  if (!unknown.empty()) {
    say(fmt::format("proving {} rows, {} known from the receipt", unknown.size(), rows.size() - unknown.size()));
    Filler filler(report.verdicts, std::move(wanted), options_);
    const int64_t start = now_us();
    if (options_.contact.command.empty()) {
      proof::prove_kernels(instances_, device_, weights_, options_.kernels, filler);
    } else {
      contact_rows(unknown, options_.contact, filler);
    }
    const int64_t first = filler.first_us() == 0 ? now_us() : filler.first_us();
    report.stages.push_back({"until the first row", static_cast<double>(first - start) / 1e3});
    report.stages.push_back({"rows", static_cast<double>(now_us() - first) / 1e3});
  }
  for (size_t i : rows) receipt_.add(report.verdicts[i], effort_name(options_.kernels));
  judge_orders(report.verdicts);
}

// The skipped rows of one Desc, for want of others.
void Certifier::prove_skipped(Report& report, std::string_view op, const std::string& desc) {
  std::vector<size_t> rows;
  for (size_t i = 0; i < report.verdicts.size(); ++i) {
    const Verdict& row = report.verdicts[i];
    if (row.state == State::kSkipped && row.op == op && row.desc == desc) rows.push_back(i);
  }
  if (!rows.empty()) prove_rows(report, rows);
}

void Certifier::choose_and_prove_weights(Report& report) {
  say("proving the weights");
  const int64_t start = now_us();
  const auto activations = [this] {
    return in_turn(embeddings_of(options_.text, instances_, weights_),
                   options_.deeper ? options_.deeper() : std::vector<std::vector<double>>());
  };
  Tensors tensors{device_, weights_, activations, {}};
  std::vector<Entrant> entrants;
  std::vector<Contest> contests;
  ops::for_each_op([&]<class Op>() {
    if constexpr (ops::HasCases<Op>) {
      for (DescGroup<Op>& found : groups<Op>(instances_)) {
        const auto group = std::make_shared<DescGroup<Op>>(std::move(found));
        Entrant entrant{Op::kName, describe(group->desc), group->bucket, {}, {}, ""};
        entrant.enter = [this, &report, group] {
          return make_contest<Op>(*group, weights_, receipt_, options_, report);
        };
        entrant.prove_tensors = [this, &report, &tensors, group](std::string_view row, std::string& reason) {
          for (const ops::Impl<Op>* impl : ops::rows<Op>()) {
            if (row != impl->name) continue;
            return prove_row_tensors<Op>(*group, *impl, tensors, receipt_, options_, report, reason);
          }
          return false;
        };
        contests.push_back(entrant.enter());
        entrants.push_back(std::move(entrant));
      }
    }
  });
  std::vector<Choice> choices;
  for (bool settled = false; !settled;) {
    settled = true;
    choices = choose(contests, options_.weight_memory_bytes);
    for (size_t i = 0; i < entrants.size(); ++i) {
      if (contests[i].candidates.empty()) continue;
      Entrant& entrant = entrants[i];
      const std::string row = contests[i].candidates[choices[i].index].row;
      std::string reason;
      if (entrant.proven == row) continue;
      if (entrant.prove_tensors(row, reason)) {
        entrant.proven = row;
        continue;
      }
      Verdict& verdict = *find_verdict(report, entrant.op, entrant.desc, row);
      verdict.state = State::kFailed;
      verdict.reason = reason;
      if (!any_passed(report, entrant.op, entrant.desc)) prove_skipped(report, entrant.op, entrant.desc);
      contests[i] = entrant.enter();
      settled = false;
    }
  }
  for (size_t i = 0; i < entrants.size(); ++i) {
    for (size_t c = 0; c < contests[i].candidates.size(); ++c) {
      const std::string& row = contests[i].candidates[c].row;
      find_verdict(report, entrants[i].op, entrants[i].desc, row)->passed_over = choices[i].reasons[c];
    }
    if (entrants[i].proven.empty()) continue;
    receipt_.add_choice(entrants[i].op, entrants[i].desc, entrants[i].bucket, entrants[i].proven);
  }
  report.stages.push_back({"choice and weights", static_cast<double>(now_us() - start) / 1e3});
}

Result<void> Certifier::check_forced(const Report& report) const {
  if (options_.allow_unproven) return {};
  for (const Verdict& verdict : report.verdicts) {
    if (verdict.state != State::kFailed || options_.forced.row(verdict.op, verdict.desc) != verdict.row) continue;
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
  return [verdicts = report.verdicts, forced = options.forced, allow_unproven = options.allow_unproven](
             std::string_view op, const std::string& desc, std::string_view row) -> ops::Refusal {
    if (allow_unproven && forced.row(op, desc) == row) return std::nullopt;
    for (const Verdict& v : verdicts) {
      if (v.op != op || v.desc != desc || v.row != row) continue;
      if (v.state != State::kPassed) return std::string(state_name(v.state)) + ": " + v.reason;
      return v.passed_over.empty() ? ops::Refusal() : v.passed_over;
    }
    return "not proven for this Desc";
  };
}

}  // namespace assay::proof

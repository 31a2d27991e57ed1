#include "engine/prove.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "base/hash.h"
#include "engine/load.h"
#include "numeric/bf16.h"

namespace assay::engine {
namespace {

constexpr int32_t kCompanyTokens = 17;

// Names the rule by which seeds become tokens (ops/sample/sample_random.h): part of the fingerprint.
constexpr std::string_view kSeedRule = "philox4x32-10, 53 bits, counter = index of the token";

// Keeps the logits of all steps, and one token of each layer; taps of an engine see host memory.
class ProbeTap : public ops::Taps {
 public:
  void record(std::string_view site, int layer, const ops::ConstView& value) override {
    if (site == "layer") record_layer(layer, value);
    if (site != "logits") return;
    for (int64_t row = 0; row < value.rows; ++row) {
      const float* first = value.row<float>(row);
      logits.insert(logits.end(), first, first + value.cols);
    }
  }
  std::vector<float> logits;
  std::vector<std::vector<double>> activations;

 private:
  void record_layer(int layer, const ops::ConstView& value) {
    const int64_t token = (5 * int64_t{layer} + 2) % value.rows;
    std::vector<double> row;
    double squares = 0;
    for (int64_t i = 0; i < value.cols; ++i) {
      row.push_back(value.dtype == DType::kF32 ? value.row<float>(token)[i]
                                               : numeric::bf16_to_float(value.row<numeric::Bf16>(token)[i]));
      squares += row.back() * row.back();
    }
    if (!(squares > 0) || !std::isfinite(squares)) return;
    const double factor = std::sqrt(static_cast<double>(row.size()) / squares);
    for (double& element : row) element *= factor;
    activations.insert(activations.begin(), std::move(row));
  }
};

}  // namespace

std::vector<proof::ManifestTensor> manifest_of(const checkpoint::Checkpoint& checkpoint) {
  std::vector<proof::ManifestTensor> tensors;
  for (const checkpoint::TensorInfo& tensor : checkpoint.tensors()) {
    tensors.push_back({tensor.name, hash64(tensor.bytes)});
  }
  return tensors;
}

Result<void> check_tensors(const checkpoint::Checkpoint& checkpoint, const ProofOptions& options,
                           const std::vector<proof::ManifestTensor>& tensors, proof::Report& report) {
  const proof::ManifestCheck check = proof::check_manifest(options.receipt_directory, checkpoint.directory(), tensors,
                                                           options.trust_checkpoint, report.notes);
  if (check.path.empty()) report.notes.emplace_back("no manifest: a changed tensor cannot be noticed");
  if (check.first_use) report.notes.push_back("tensor hashes kept for the next start: " + check.path);
  if (check.changed.empty()) return {};
  std::string names;
  constexpr size_t kShown = 8;
  for (size_t i = 0; i < std::min(kShown, check.changed.size()); ++i) names += (i == 0 ? "" : ", ") + check.changed[i];
  if (check.changed.size() > kShown) names += fmt::format(" and {} more", check.changed.size() - kShown);
  return Error{ErrorKind::kCheckpoint,
               "tensors are not what they were",
               names,
               "other bytes",
               "those of " + check.path,
               "--trust-checkpoint accepts the checkpoint as it is now"};
}

void describe_choice(const ops::Selector& selector, uint64_t weights_hash, proof::Report& report) {
  uint64_t hash = hash64(kSeedRule, weights_hash);
  report.proven = true;
  report.explanation = selector.explain();
  for (const ops::Decision& decision : selector.decisions()) {
    const auto verdict = std::find_if(report.verdicts.begin(), report.verdicts.end(), [&](const proof::Verdict& v) {
      return v.op == decision.op && v.desc == decision.desc && v.row == decision.chosen;
    });
    const bool composed = verdict == report.verdicts.end() && decision.chosen == "composed";
    proof::ChosenRow chosen{decision.op, decision.desc, decision.chosen, 0, composed};
    if (verdict != report.verdicts.end()) {
      chosen.proven = verdict->state == proof::State::kPassed;
      chosen.order = verdict->order;
    }
    report.proven = report.proven && chosen.proven;
    hash = hash64(decision.op + " " + decision.desc, hash);
    hash = chosen.order != 0 ? hash_fold(hash, chosen.order) : hash64(decision.chosen, hash);
    report.chosen.push_back(std::move(chosen));
  }
  report.fingerprint = fmt::format("assay-{:016x}", hash);
}

bool EngineProbe::possible() const {
  const EngineLimits& limits = engine_.limits();
  return limits.max_step_outputs >= kPrefillCut && limits.max_step_tokens >= kPrefillCut + kCompanyTokens &&
         most_tokens() > 0;
}

int32_t EngineProbe::vocab() const { return engine_.limits().vocab_size; }

int32_t EngineProbe::most_tokens() const {
  const EngineLimits& limits = engine_.limits();
  return std::min(limits.context_tokens, (limits.page_count - 1) * limits.page_tokens);  // one page is the company's
}

std::vector<float> EngineProbe::logits(std::span<const int32_t> text, proof::Arrangement arrangement) {
  const EngineLimits& limits = engine_.limits();
  const bool company =
      arrangement == proof::Arrangement::kBatched && (limits.state_slots == 0 || limits.state_slots >= 4);
  const int32_t fitting = std::min(limits.max_step_tokens, limits.max_step_outputs) / kPrefillCut * kPrefillCut;
  const int32_t piece_tokens = arrangement == proof::Arrangement::kWhole ? fitting : kPrefillCut;
  ProbeTap tap;
  engine_.set_taps(&tap);
  Piece piece;
  for (int32_t first = 0; first < static_cast<int32_t>(text.size()); first += piece_tokens) {
    piece.first = first;
    piece.count = std::min(piece_tokens, static_cast<int32_t>(text.size()) - first);
    engine_.submit(make_step(text, piece, company));
    engine_.collect();
    piece.read_slot = piece.write_slot;
    piece.write_slot = 1 - piece.write_slot;
  }
  engine_.set_taps(nullptr);
  poison();
  activations_ = std::move(tap.activations);
  return std::move(tap.logits);
}

Step EngineProbe::make_step(std::span<const int32_t> text, const Piece& piece, bool company) {
  const EngineLimits& limits = engine_.limits();
  const bool recurrent = limits.state_slots > 0;
  Step step;
  step.id = ++step_;
  if (company) {  // in front, so that the text's tokens stand elsewhere
    StepRow row;
    row.sequence = 1;
    row.phase = Phase::kPrefill;
    row.token_count = kCompanyTokens;
    row.page_count = 1;
    step.pages.push_back(limits.page_count - 1);
    if (recurrent) row.state_write = 2 + static_cast<int32_t>(step_ % 2);
    for (int32_t t = 0; t < kCompanyTokens; ++t) {
      step.tokens.push_back(TokenSource::literal(text[static_cast<size_t>(t * 5 + piece.first) % text.size()]));
    }
    step.rows.push_back(row);
  }
  StepRow row;
  row.phase = Phase::kPrefill;
  row.first_token = static_cast<int32_t>(step.tokens.size());
  row.token_count = piece.count;
  row.position = piece.first;
  row.first_page = static_cast<int32_t>(step.pages.size());
  row.page_count = (piece.first + piece.count + limits.page_tokens - 1) / limits.page_tokens;
  for (int32_t page = 0; page < row.page_count; ++page) step.pages.push_back(page);
  used_pages_ = std::max(used_pages_, row.page_count);
  if (recurrent) {
    row.state_read = piece.read_slot;
    row.state_write = piece.write_slot;
  }
  for (int32_t t = 0; t < piece.count; ++t) {
    step.outputs.push_back({static_cast<int32_t>(step.tokens.size()), {}});
    step.tokens.push_back(TokenSource::literal(text[static_cast<size_t>(piece.first) + static_cast<size_t>(t)]));
  }
  step.rows.push_back(row);
  return step;
}

// A step without tokens: it only gives back what texts used.
void EngineProbe::poison() {
  const EngineLimits& limits = engine_.limits();
  Step step;
  step.id = ++step_;
  for (int32_t page = 0; page < std::min(used_pages_, limits.page_count - 1); ++page) step.freed_pages.push_back(page);
  step.freed_pages.push_back(limits.page_count - 1);
  for (int32_t slot = 0; slot < std::min(4, limits.state_slots); ++slot) step.freed_slots.push_back(slot);
  engine_.submit(step);
  engine_.collect();
}

}  // namespace assay::engine

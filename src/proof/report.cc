#include "proof/report.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <nlohmann/json.hpp>

#include "proof/verdict_json.h"

namespace assay::proof {
namespace {

using nlohmann::ordered_json;

ordered_json number(double value) { return std::isfinite(value) ? ordered_json(value) : ordered_json(nullptr); }

ordered_json weight_json(const WeightVerdict& w) {
  return {{"op", w.op},
          {"desc", w.desc},
          {"row", w.row},
          {"weight", w.weight},
          {"layout", w.layout},
          {"hash", hex64(w.hash)},
          {"verdict", state_name(w.state)},
          {"reason", w.reason},
          {"error_over_bound", number(w.error_over_bound)},
          {"milliseconds", w.milliseconds},
          {"from_receipt", w.remembered}};
}

ordered_json model_json(const ModelVerdict& m) {
  if (!m.run) return nullptr;
  return {{"verdict", state_name(m.state)},
          {"reason", m.reason},
          {"tokens", m.tokens},
          {"mean_kl", number(m.mean_kl)},
          {"max_kl", number(m.max_kl)},
          {"noise_kl", number(m.noise_kl)},
          {"limit", m.limit},
          {"cut_tokens", m.cut_tokens},
          {"milliseconds", m.milliseconds},
          {"from_receipt", m.remembered}};
}

// Stages, and of the rows those ops that took most.
std::string stages_text(const Report& report) {
  std::string text = "time:";
  for (const Stage& stage : report.stages) text += fmt::format(" {} {:.0f} ms,", stage.name, stage.milliseconds);
  std::map<std::string, double> by_op;
  double cases = 0;
  for (const Verdict& v : report.verdicts) {
    if (v.remembered) continue;
    by_op[v.op] += v.milliseconds;
    cases += v.cases_milliseconds;
  }
  text += fmt::format(" of the rows {:.0f} ms for expected values", cases);
  std::vector<std::pair<double, std::string>> ops;
  ops.reserve(by_op.size());
  for (const auto& [op, ms] : by_op) ops.emplace_back(-ms, op);
  std::sort(ops.begin(), ops.end());
  for (const auto& [ms, op] : ops) text += fmt::format(", {} {:.0f}", op, -ms);
  return text + "\n";
}

// The last line where only some rows were asked for.
std::string partial_text(const Report& report) {
  int passed = 0, failed = 0;
  for (const Verdict& v : report.verdicts) {
    passed += v.state == State::kPassed;
    failed += v.state == State::kFailed;
  }
  const std::string kept = report.receipt_path.empty() ? "" : "; what was seen is kept in " + report.receipt_path;
  return fmt::format(
      "{} rows passed, {} failed, in {:.2f} s. Only these were asked for: nothing was chosen, and the model was not "
      "run{}\n",
      passed, failed, report.seconds, kept);
}

}  // namespace

std::string report_json(const Report& report) {
  ordered_json json{{"schema", 2},
                    {"kind", "assay proof"},
                    {"partial", report.partial},
                    {"proven", report.proven},
                    {"fingerprint", report.fingerprint},
                    {"build", report.build},
                    {"machine", report.machine},
                    {"receipt", report.receipt_path},
                    {"seconds", report.seconds}};
  json["stages"] = ordered_json::array();
  for (const Stage& stage : report.stages) {
    json["stages"].push_back({{"name", stage.name}, {"milliseconds", stage.milliseconds}});
  }
  json["verdicts"] = ordered_json::array();
  for (const Verdict& verdict : report.verdicts) json["verdicts"].push_back(to_json(verdict));
  json["weights"] = ordered_json::array();
  for (const WeightVerdict& verdict : report.weights) json["weights"].push_back(weight_json(verdict));
  json["model"] = model_json(report.model);
  json["chosen"] = ordered_json::array();
  for (const ChosenRow& row : report.chosen) {
    json["chosen"].push_back(
        {{"op", row.op}, {"desc", row.desc}, {"row", row.row}, {"order", hex64(row.order)}, {"proven", row.proven}});
  }
  json["notes"] = report.notes;
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

std::string report_text(const Report& report) {
  std::string text = table(report.verdicts);
  if (report.partial) {
    text += stages_text(report);
    for (const std::string& note : report.notes) text += "note: " + note + "\n";
    return text + partial_text(report);
  }
  size_t remembered = 0;
  double worst = 0, ms = 0;
  for (const WeightVerdict& w : report.weights) {
    remembered += w.remembered ? 1 : 0;
    worst = std::max(worst, w.error_over_bound);
    ms += w.remembered ? 0 : w.milliseconds;
    if (w.state == State::kFailed) text += fmt::format("weights: {} {} {}: {}\n", w.op, w.row, w.weight, w.reason);
  }
  text += fmt::format("weights: {} checked in their layouts, {} of them known, error/bound {:.3f}, {:.0f} ms\n",
                      report.weights.size(), remembered, worst, ms);
  const ModelVerdict& m = report.model;
  if (m.run) {
    text += fmt::format(
        "model: {}, KL to the reference rows {:.2g} nats a token over {} tokens (limit {:.2g}), whole = cut = "
        "batched over {} tokens, {:.0f} ms{}{}\n",
        state_name(m.state), m.mean_kl, m.tokens, m.limit, m.cut_tokens, m.milliseconds,
        m.remembered ? " (receipt)" : "", m.reason.empty() ? "" : ": " + m.reason);
  }
  text += stages_text(report);
  for (const ChosenRow& row : report.chosen) {
    text += fmt::format("chosen: {:<16} {:<60} {}{}\n", row.op, row.desc, row.row, row.proven ? "" : "  UNPROVEN");
  }
  for (const std::string& note : report.notes) text += "note: " + note + "\n";
  text += fmt::format("{} in {:.2f} s, fingerprint {}{}\n", report.proven ? "proven" : "NOT PROVEN", report.seconds,
                      report.fingerprint, report.receipt_path.empty() ? "" : ", receipt " + report.receipt_path);
  return text;
}

}  // namespace assay::proof

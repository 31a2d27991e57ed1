// assay prove: the evidence that serve asks for, without serving; and what belongs to it: prove-row is the child
// process that makes first contact with rows, repro shows a failure again.
#include <fmt/core.h>

#include <cmath>
#include <cstdio>
#include <map>
#include <memory>

#include <nlohmann/json.hpp>

#include "assay/command.h"
#include "assay/common_options.h"
#include "assay/proof_options.h"
#include "assay/self_test.h"
#include "assay/session.h"
#include "backend/make_device.h"
#include "base/file.h"
#include "proof/receipt.h"
#include "proof/repro.h"

namespace assay::app {
namespace {

using nlohmann::ordered_json;

struct ProveOptions {
  CommonOptions common;
  bool json = false;
  std::string export_file;
  std::vector<std::string> diff;
  bool self_test = false;
};

// A member of an object; null where there is none.
const ordered_json& member(const ordered_json& json, const char* key) {
  static const ordered_json kNull;
  return json.is_object() && json.contains(key) ? json.at(key) : kNull;
}

std::string text_of(const ordered_json& json, const char* key) {
  const ordered_json& text = member(json, key);
  return text.is_string() ? text.get<std::string>() : "";
}

Result<ordered_json> read_report(const std::string& path) {
  ASSAY_ASSIGN(const std::string text, read_file(path));
  ordered_json json = ordered_json::parse(text, nullptr, false);
  if (text_of(json, "kind") == "assay proof" && member(json, "verdicts").is_array()) return json;
  return Error{
      ErrorKind::kInvalidArgument, "not an exported proof", path, "another file", "one of assay prove --export", ""};
}

// Verdicts that differ, one line each, and what was chosen otherwise.
Result<void> run_diff(const std::string& a_path, const std::string& b_path) {
  std::map<std::string, std::array<std::string, 2>> lines;
  const std::string paths[] = {a_path, b_path};
  for (size_t side = 0; side < 2; ++side) {
    ASSAY_ASSIGN(const auto json, read_report(paths[side]));
    for (const auto& v : member(json, "verdicts")) {
      const std::string key = text_of(v, "op") + " " + text_of(v, "desc") + " " + text_of(v, "row");
      const auto& ratio = member(member(v, "worst"), "error_over_bound");
      const std::string worst = ratio.is_number() ? fmt::format("{:.3f}", ratio.get<double>()) : "inf";
      std::string& line = lines[key][side];
      line = fmt::format("{} {} bits {}", text_of(v, "verdict"), worst, text_of(v, "digest"));
      if (const std::string reason = text_of(v, "reason"); !reason.empty()) line += " " + reason;
    }
    for (const auto& c : member(json, "chosen")) {
      lines["chosen " + text_of(c, "op") + " " + text_of(c, "desc")][side] = text_of(c, "row");
    }
  }
  for (const auto& [key, sides] : lines) {
    if (sides[0] == sides[1]) continue;
    fmt::print("{}\n  < {}\n  > {}\n", key, sides[0].empty() ? "nothing" : sides[0],
               sides[1].empty() ? "nothing" : sides[1]);
  }
  return {};
}

Result<void> run_prove(ProveOptions& options) {
  if (!options.diff.empty()) return run_diff(options.diff[0], options.diff[1]);
  apply_log_level(options.common.log_level);
  std::unique_ptr<text::Tokenizer> tokenizer;
  engine::LoadOptions load = load_options(options.common);
  if (!options.common.model_directory.ends_with(".json")) {
    ASSAY_ASSIGN(tokenizer, text::Tokenizer::load(options.common.model_directory));
    load.real_vocab = tokenizer->vocabulary_size();
  }
  load.proof =
      proof_options(*options.common.proof, tokenizer.get(), child_environment(options.common, load.real_vocab));
  load.progress = [](const std::string& line) { log_info("{}", line); };
  if (options.self_test) return built_in_faults()->run_self_test(load);
  ASSAY_ASSIGN(const proof::Report report, engine::prove(load));
  if (!options.export_file.empty()) {
    ASSAY_TRY(proof::write_atomically(options.export_file, proof::report_json(report) + "\n"));
  }
  fmt::print("{}", options.json ? proof::report_json(report) + "\n" : proof::report_text(report));
  if (options.common.explain) fmt::print(stderr, "{}", report.explanation);
  int failed = 0;
  for (const proof::Verdict& verdict : report.verdicts) failed += verdict.state == proof::State::kFailed ? 1 : 0;
  if (failed == 0) return {};
  return Error{ErrorKind::kNumerical, "rows failed their proof", "", std::to_string(failed), "none", ""};
}

Result<void> run_row(const CommonOptions& options, const ProofFlags& flags, int32_t real_vocab) {
  apply_log_level(options.log_level);
  engine::LoadOptions load = load_options(options);
  load.real_vocab = real_vocab;
  load.proof.certify.kernels.full = flags.full;
  load.proof.certify.kernels.repeats = flags.repeats;
  const bool asked = flags.full || flags.repeats != proof::KernelOptions{}.repeats;
  if (asked) load.proof.certify.kernels.row_budget_ms = 0;
  return engine::answer_contact(load);
}

Result<void> run_repro_file(const std::string& file, const std::string& device_name) {
  ASSAY_ASSIGN(const auto device, backend::make_device(device_name, 0));
  ASSAY_ASSIGN(const proof::Verdict verdict, proof::run_repro(file, *device));
  fmt::print("{}", proof::table({verdict}));
  if (verdict.state == proof::State::kPassed) return {};
  return Error{ErrorKind::kNumerical, "the row fails", file, verdict.reason, "", ""};
}

}  // namespace

Command add_prove(CLI::App& parent) {
  auto options = std::make_shared<ProveOptions>();
  options->common.proof.emplace();
  CLI::App& app = add_subcommand(parent, "prove", "Prove every row that may run the model, as serve does before READY");
  add_common_options(app, options->common);
  add_proof_flags(app, *options->common.proof);
  find_option(app, "model").required(false);
  add_option(app, "--op", options->common.proof->op, "Only rows of this op");
  add_option(app, "--row", options->common.proof->row, "Only rows of this name");
  add_flag(app, "--json", options->json, "Print one object; its schema is docs/proof.schema.json");
  add_option(app, "--export", options->export_file, "Also write that object to a file");
  if (built_in_faults() != nullptr) {
    add_flag(app, "--self-test", options->self_test, "Inject every fault and print which evidence caught it");
  }
  add_option(app, "--diff", options->diff, "Compare two exported files; nothing is run").values(2);
  return {&app, [options] { return run_prove(*options); }};
}

Command add_prove_row(CLI::App& parent) {
  auto options = std::make_shared<CommonOptions>();
  auto flags = std::make_shared<ProofFlags>();
  auto real_vocab = std::make_shared<int32_t>(0);
  CLI::App& app = add_subcommand(parent, "prove-row", "Answers assay prove; not for people");
  hide(app);
  add_common_options(app, *options);
  add_proof_flags(app, *flags);
  add_option(app, "--real-vocab", *real_vocab, "Token ids from here on are padding rows");
  return {&app, [options, flags, real_vocab] { return run_row(*options, *flags, *real_vocab); }};
}

Command add_repro(CLI::App& parent) {
  auto file = std::make_shared<std::string>();
  auto model = std::make_shared<std::string>();
  auto device = std::make_shared<std::string>("cpu");
  CLI::App& app = add_subcommand(parent, "repro", "Show a row's failure again, from the file that assay prove wrote");
  add_argument(app, "file", *file, "The file").required();
  add_argument(app, "model", *model, "").hide();
  add_option(app, "--device", *device, "Where to run the row: cpu, cuda or cuda:INDEX").show_default();
  return {&app, [file, device] { return run_repro_file(*file, *device); }};
}

}  // namespace assay::app

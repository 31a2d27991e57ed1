#include "assay/proof_options.h"

#include <fmt/core.h>

#include <utility>

#include "assay/common_options.h"

namespace assay::app {
namespace {

// Plain prose with numbers and code: words, digits, punctuation and line breaks all occur.
constexpr const char* kText =
    "Every kernel is checked on this machine before it answers anyone. A fox crossed 17 frozen rivers, counted 391 "
    "stars, and wrote down what it saw: for i in range(3): print(i * i). The answer was {\"total\": 14}, and the "
    "winter was long. \"Is it far?\" asked the crow. \"Twelve miles,\" said the fox, \"and then the sea.\" They went "
    "on "
    "in the morning, past the old mill, the bridge and the last lamp of the town, until the road was only sand.\n";

}  // namespace

void add_proof_flags(CLI::App& app, ProofFlags& flags) {
  add_flag(app, "--full", flags.full, "All shapes, all tensors, all columns: takes minutes, not seconds");
  add_option(app, "--repeats", flags.repeats, "Runs of every case that must agree bit for bit")
      .range(2, 1'000'000)
      .show_default();
  add_option(app, "--receipt-dir", flags.receipt_directory,
             "Where evidence is kept between starts. Default: $XDG_CACHE_HOME/assay or ~/.cache/assay");
  add_flag(app, "--no-receipt", flags.no_receipt, "Neither read nor write a receipt");
  add_flag(app, "--allow-unproven", flags.allow_unproven, "Serve with a forced row, or a model, that failed its proof");
  add_flag(app, "--trust-checkpoint", flags.trust_checkpoint, "Accept tensors that changed since the first start");
  add_flag(app, "--retry-failed", flags.retry_failed, "Try rows again that the receipt says failed");
  add_flag(app, "--prove-in-process", flags.in_process,
           "No child process: a row that crashes takes this program along");
  add_option(app, "--row-timeout-ms", flags.row_timeout_ms, "A row that takes longer to prove is taken to hang")
      .range(int64_t{1}, int64_t{86'400'000})
      .show_default();
}

engine::ProofOptions proof_options(const ProofFlags& flags, const text::Tokenizer* tokenizer,
                                   std::vector<std::string> environment) {
  engine::ProofOptions options;
  options.on = true;
  options.certify.kernels.full = flags.full;
  options.certify.kernels.repeats = flags.repeats;
  const bool asked = flags.full || flags.repeats != proof::KernelOptions{}.repeats;
  if (asked) options.certify.kernels.row_budget_ms = 0;
  options.certify.only_op = flags.op;
  options.certify.only_row = flags.row;
  options.certify.allow_unproven = flags.allow_unproven;
  options.certify.retry_failed = flags.retry_failed;
  if (!flags.in_process) {
    options.certify.contact.command = {"/proc/self/exe", "prove-row"};
    environment.push_back(fmt::format("ASSAY_REPEATS={}", flags.repeats));
    environment.push_back(fmt::format("ASSAY_FULL={}", flags.full ? "true" : "false"));
    options.certify.contact.environment = std::move(environment);
    options.certify.contact.timeout_ms = flags.row_timeout_ms;
  }
  options.trust_checkpoint = flags.trust_checkpoint;
  if (!flags.no_receipt) {
    options.receipt_directory =
        flags.receipt_directory.empty() ? proof::default_receipt_directory() : flags.receipt_directory;
  }
  if (tokenizer != nullptr) options.text = tokenizer->encode(kText);
  return options;
}

}  // namespace assay::app

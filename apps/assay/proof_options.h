// Flags of the subcommands that prove rows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "assay/flags.h"
#include "base/result.h"
#include "engine/load.h"
#include "text/tokenizer.h"

namespace assay::app {

struct ProofFlags {
  bool full = false;
  int repeats = proof::KernelOptions{}.repeats;
  std::string receipt_directory;
  bool no_receipt = false;
  bool allow_unproven = false;
  bool trust_checkpoint = false;
  bool retry_failed = false;
  bool in_process = false;
  int64_t row_timeout_ms = proof::ContactOptions{}.timeout_ms;
  std::string op, row;
};

void add_proof_flags(CLI::App& app, ProofFlags& flags);

// tokenizer: for the text of the evidence about the whole model; null: made-up ids. environment: what the child process
// needs to load the same model (ASSAY_<FLAG>=value).
engine::ProofOptions proof_options(const ProofFlags& flags, const text::Tokenizer* tokenizer,
                                   std::vector<std::string> environment);

}  // namespace assay::app

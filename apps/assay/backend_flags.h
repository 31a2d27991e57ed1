// Flags of SGLang that pin kernels, for those who bring their command lines: names for `--force`.
//
//   --fp4-gemm-backend V       --force "linear nvfp4=ROW"
//   --moe-runner-backend V     --force experts=ROW
//   --attention-backend V      --force attention=ROW
// V is a row's own name, or a value of SGLang's that has a counterpart here.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "assay/flags.h"

namespace assay::app {

struct BackendFlags {
  std::string fp4_gemm = "auto", moe_runner = "auto", attention = "auto";
};

void add_backend_flags(CLI::App& app, BackendFlags& flags);

// Targets and rows for ops::ForcedRows. device: as --device names it.
std::vector<std::pair<std::string, std::string>> forced_by(const BackendFlags& flags, const std::string& device);

}  // namespace assay::app

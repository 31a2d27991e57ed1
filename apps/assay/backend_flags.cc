#include "assay/backend_flags.h"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "assay/common_options.h"
#include "ops/attention/attention.h"
#include "ops/experts/experts.h"
#include "ops/linear/linear.h"
#include "ops/row_list.h"

namespace assay::app {
namespace {

constexpr std::string_view kAuto = "auto", kReference = "reference";

// A value of SGLang's and the row that does the same; an empty row: there is none here.
struct Counterpart {
  std::string_view value, row;
};

struct Flag {
  std::string_view name, target;
  std::vector<Counterpart> counterparts;
  std::vector<std::string_view> rows;
};

template <class Op>
std::vector<std::string_view> names() {
  std::vector<std::string_view> list;
  for (const ops::Impl<Op>* impl : ops::rows<Op>()) list.emplace_back(impl->name);
  return list;
}

// marlin: 4-bit weights decoded exactly, bf16 activations, tiles on tensor cores.
Flag fp4_gemm() {
  return {"--fp4-gemm-backend",
          "linear nvfp4",
          {{"marlin", "cuda_gemm"},
           {"cutlass", ""},
           {"flashinfer_cudnn", ""},
           {"flashinfer_cutedsl", ""},
           {"flashinfer_cutlass", ""},
           {"flashinfer_trtllm", ""}},
          names<ops::LinearOp>()};
}

Flag moe_runner() {
  return {"--moe-runner-backend",
          "experts",
          {{"marlin", "cuda_grouped"},
           {"cutlass", ""},
           {"deep_gemm", ""},
           {"flashinfer_cutedsl", ""},
           {"flashinfer_cutlass", ""},
           {"flashinfer_mxfp4", ""},
           {"flashinfer_trtllm", ""},
           {"triton", ""},
           {"triton_kernel", ""}},
          names<ops::ExpertsOp>()};
}

Flag attention() {
  return {"--attention-backend",
          "attention",
          {{"torch_native", kReference},
           {"aiter", ""},
           {"ascend", ""},
           {"cutlass_mla", ""},
           {"dual_chunk_flash_attn", ""},
           {"fa3", ""},
           {"fa4", ""},
           {"flashinfer", ""},
           {"flashmla", ""},
           {"flex_attention", ""},
           {"intel_amx", ""},
           {"intel_xpu", ""},
           {"nsa", ""},
           {"triton", ""},
           {"trtllm_mha", ""},
           {"trtllm_mla", ""},
           {"wave", ""}},
          names<ops::AttentionOp>()};
}

bool has(const Flag& flag, std::string_view row) {
  return std::find(flag.rows.begin(), flag.rows.end(), row) != flag.rows.end();
}

// "" where the value can be used.
std::string problem(const Flag& flag, const std::string& value) {
  std::string existing(kAuto);
  for (std::string_view row : flag.rows) existing += ", " + std::string(row);
  bool theirs = false;
  for (const Counterpart& counterpart : flag.counterparts) {
    const bool here = has(flag, counterpart.row);
    if (here) existing += fmt::format(", {} (is {})", counterpart.value, counterpart.row);
    if (counterpart.value == value && here) return "";
    theirs = theirs || counterpart.value == value;
  }
  if (value == kAuto || has(flag, value)) return "";
  return fmt::format("{}; there are: {}",
                     theirs ? value + " of SGLang has no counterpart in this build" : "unknown value " + value,
                     existing);
}

std::string row_of(const Flag& flag, const std::string& value) {
  for (const Counterpart& counterpart : flag.counterparts) {
    if (counterpart.value == value) return std::string(counterpart.row);
  }
  return value;
}

void add(CLI::App& app, const Flag& flag, std::string& value, const std::string& what) {
  add_option(app, std::string(flag.name), value,
             fmt::format("Row of {}, as --force; SGLang's names where they have a counterpart", what))
      .check([flag](const std::string& got) { return problem(flag, got); }, "ROW")
      .show_default();
}

}  // namespace

void add_backend_flags(CLI::App& app, BackendFlags& flags) {
  add(app, fp4_gemm(), flags.fp4_gemm, "linear layers with NVFP4 weights");
  add(app, moe_runner(), flags.moe_runner, "routed experts");
  add(app, attention(), flags.attention, "attention");
}

std::vector<std::pair<std::string, std::string>> forced_by(const BackendFlags& flags, const std::string& device) {
  std::vector<std::pair<std::string, std::string>> forced;
  const auto pin = [&](const Flag& flag, const std::string& value) {
    if (value == kAuto) return;
    std::string row = row_of(flag, value);
    // Every kind of device has a reference row of its own, named after it; the CPU's has no prefix.
    const std::string own = device.substr(0, device.find(':')) + "_" + std::string(kReference);
    if (row == kReference && has(flag, own)) row = own;
    forced.emplace_back(flag.target, row);
  };
  pin(fp4_gemm(), flags.fp4_gemm);
  pin(moe_runner(), flags.moe_runner);
  pin(attention(), flags.attention);
  return forced;
}

}  // namespace assay::app

#include <fmt/format.h>

#include "ops/ffn_block/ffn_block_rows.h"

namespace assay::ops {

std::string describe(const FfnBlockDesc& desc) {
  std::string text;
  if (desc.experts) text += describe(*desc.experts);
  if (desc.mlp) {
    text += fmt::format("{}{} {}", text.empty() ? "" : " ", describe(desc.mlp->gate_up), describe(desc.mlp->down));
  }
  return text;
}

std::span<const Impl<FfnBlockOp>> FfnBlockOp::impls() {
  static const Impl<FfnBlockOp> rows[] = {kFfnBlockComposed};
  return rows;
}

}  // namespace assay::ops

#include "ops/attention_block/attention_block_rows.h"

namespace assay::ops {

std::string describe(const AttentionBlockDesc& desc) {
  return describe(desc.qk_norm_rope) + " " + describe(desc.qkv) + " " + describe(desc.out);
}

std::span<const Impl<AttentionBlockOp>> AttentionBlockOp::impls() {
  static const Impl<AttentionBlockOp> rows[] = {kAttentionBlockComposed};
  return rows;
}

}  // namespace assay::ops

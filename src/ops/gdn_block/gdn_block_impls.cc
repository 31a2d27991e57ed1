#include "ops/gdn_block/gdn_block_rows.h"

namespace assay::ops {

std::string describe(const GdnBlockDesc& desc) {
  return describe(desc.gated_delta) + " " + describe(desc.in_proj) + " " + describe(desc.out_proj);
}

std::span<const Impl<GdnBlockOp>> GdnBlockOp::impls() {
  static const Impl<GdnBlockOp> rows[] = {kGdnBlockComposed};
  return rows;
}

}  // namespace assay::ops

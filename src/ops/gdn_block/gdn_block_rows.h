// The rows of gdn_block.
#pragma once

#include "ops/gdn_block/gdn_block.h"

namespace assay::ops {

extern const Impl<GdnBlockOp> kGdnBlockComposed;

}  // namespace assay::ops

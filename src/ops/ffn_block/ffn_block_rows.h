// The rows of ffn_block.
#pragma once

#include "ops/ffn_block/ffn_block.h"

namespace assay::ops {

extern const Impl<FfnBlockOp> kFfnBlockComposed;

}  // namespace assay::ops

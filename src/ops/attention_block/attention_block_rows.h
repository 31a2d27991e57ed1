// The rows of attention_block.
#pragma once

#include "ops/attention_block/attention_block.h"

namespace assay::ops {

extern const Impl<AttentionBlockOp> kAttentionBlockComposed;

}  // namespace assay::ops

// Every op of the engine, for code that walks over all of them (forcing rows, listing, the proof).
#pragma once

#include "ops/attention_block/attention_block.h"
#include "ops/embed/embed.h"
#include "ops/ffn_block/ffn_block.h"
#include "ops/gdn_block/gdn_block.h"
#include "ops/sample/sample.h"

namespace assay::ops {

// Calls visit.template operator()<Op>() for every op, parts before blocks.
template <class Visitor>
void for_each_op(Visitor&& visit) {
  visit.template operator()<EmbedOp>();
  visit.template operator()<RmsNormOp>();
  visit.template operator()<LinearOp>();
  visit.template operator()<QkNormRopeOp>();
  visit.template operator()<AttentionOp>();
  visit.template operator()<ConvGatesOp>();
  visit.template operator()<GatedDeltaOp>();
  visit.template operator()<RouterOp>();
  visit.template operator()<ExpertsOp>();
  visit.template operator()<SiluMulOp>();
  visit.template operator()<SampleOp>();
  visit.template operator()<AttentionBlockOp>();
  visit.template operator()<GdnBlockOp>();
  visit.template operator()<FfnBlockOp>();
}

}  // namespace assay::ops

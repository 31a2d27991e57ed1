// From a config and the formats of its weights to the Descs of the ops that run it.
#pragma once

#include "checkpoint/config.h"
#include "models/qwen35_weights.h"
#include "ops/attention_block/attention_block.h"
#include "ops/embed/embed.h"
#include "ops/ffn_block/ffn_block.h"
#include "ops/gdn_block/gdn_block.h"

namespace assay::models {

ops::EmbedDesc embed_desc(const checkpoint::TextConfig& config, const Qwen35Weights& weights, DType activation);
ops::RmsNormDesc final_norm_desc(const checkpoint::TextConfig& config, DType activation);
ops::LinearDesc head_desc(const checkpoint::TextConfig& config, const Qwen35Weights& weights, DType activation);
ops::AttentionBlockDesc attention_block_desc(const checkpoint::TextConfig& config,
                                             const Qwen35AttentionWeights& weights, DType activation);
ops::GdnBlockDesc gdn_block_desc(const checkpoint::TextConfig& config, const Qwen35GdnWeights& weights,
                                 DType activation);
ops::FfnBlockDesc ffn_block_desc(const checkpoint::TextConfig& config, const Qwen35FfnWeights& weights,
                                 DType activation);

}  // namespace assay::models

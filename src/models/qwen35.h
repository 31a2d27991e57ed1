// Qwen3.5 and 3.6, dense and MoE: gated delta net and gated attention layers, each followed by a feed-forward block.
#pragma once

#include <memory>

#include "checkpoint/binder.h"
#include "checkpoint/config.h"
#include "models/model.h"

namespace assay::models {

// activation: dtype of activations and KV, kBf16 or kF32. Errors: kCheckpoint, naming the tensor.
Result<std::unique_ptr<Model>> make_qwen35(const checkpoint::TextConfig& config, checkpoint::Binder& binder,
                                           const AddWeight& add, DType activation);

}  // namespace assay::models

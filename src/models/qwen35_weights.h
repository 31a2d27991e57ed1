// The parameters of Qwen3.5 (dense and MoE): their names in a checkpoint, and the weights they become.
//
// Names: models of the multimodal wrapper prefix the text model with "model.language_model.", text-only exports with
// "model."; lm_head.weight stands alone. Fused weights stack checkpoint tensors along N:
//   qkv = q_proj (per head q, then gate) | k_proj | v_proj       in_proj = in_proj_qkv | in_proj_z      gates =
//   in_proj_b | in_proj_a gate_up = gate_proj | up_proj
#pragma once

#include <vector>

#include "checkpoint/binder.h"
#include "checkpoint/config.h"
#include "models/model.h"

namespace assay::models {

// A weight and the format its matrices are in.
struct BoundWeight {
  ops::WeightId id = ops::WeightId::kNone;
  numeric::WeightFormat format = numeric::WeightFormat::kBf16;
};

struct Qwen35AttentionWeights {
  BoundWeight qkv, q_norm, k_norm, out;
};

struct Qwen35GdnWeights {
  BoundWeight in_proj, gates, conv, a_log, dt_bias, norm, out_proj;
};

struct Qwen35FfnWeights {
  BoundWeight gate_up, down;                 // the dense MLP, or the shared expert
  BoundWeight router, shared_gate, experts;  // MoE
};

struct Qwen35LayerWeights {
  BoundWeight input_norm, post_norm;
  Qwen35AttentionWeights attention;  // full-attention layers
  Qwen35GdnWeights gdn;              // linear-attention layers
  Qwen35FfnWeights ffn;
};

struct Qwen35Weights {
  BoundWeight embed, final_norm, head;  // head is embed when tied
  std::vector<Qwen35LayerWeights> layers;
};

// Takes every tensor of the checkpoint once: used, kept (mtp.*) or skipped by name (model.visual.*).
// Errors: kCheckpoint, naming the tensor.
Result<Qwen35Weights> bind_qwen35(const checkpoint::TextConfig& config, checkpoint::Binder& binder,
                                  const AddWeight& add);

}  // namespace assay::models

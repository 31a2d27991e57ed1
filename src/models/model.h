// Model: an architecture bound to a checkpoint's weights; ForwardPlan: its forward pass made ready for one bucket.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "ops/batch.h"
#include "ops/impl.h"

namespace assay::models {

enum class StateKind : uint8_t { kKv, kRecurrent };

// What a sequence leaves behind, layer by layer.
struct StateShape {
  std::vector<StateKind> layers;
  int32_t kv_heads = 0;  // of every kKv layer
  int32_t head_dim = 0;
  int64_t conv_elements = 0;   // of every kRecurrent layer, per slot, activation dtype
  int64_t delta_elements = 0;  // likewise, fp32: delta_heads matrices of rows of delta_columns
  int32_t delta_heads = 0;
  int32_t delta_columns = 0;
};

// One forward pass: device views. R outputs are a choice among the T tokens.
struct ForwardArgs {
  ops::BatchView batch;
  ops::ConstView ids;                                  // I32 [T, 1]
  ops::TokenCounts outputs;                            // total = R
  const int32_t* output_tokens = nullptr;              // [R] index of the token whose logits are wanted
  std::span<const ops::KvCacheView> kv;                // by layer; unused where the layer is recurrent
  std::span<const ops::RecurrentStateView> recurrent;  // by layer; unused where the layer is attention
  ops::View logits;                                    // F32 [R, vocab]
};

class ForwardPlan {
 public:
  virtual ~ForwardPlan() = default;
  virtual void forward(const ForwardArgs& args, const ops::Launch& launch) const = 0;
};

class Model {
 public:
  virtual ~Model() = default;
  virtual const StateShape& state_shape() const = 0;
  virtual size_t workspace_bytes(const ops::Bucket& bucket, ops::MakeContext& context) const = 0;
  virtual Result<std::unique_ptr<ForwardPlan>> plan(const ops::Bucket& bucket, ops::MakeContext& context) const = 0;
};

// Registers a weight with whoever stores weights.
using AddWeight = std::function<ops::WeightId(ops::WeightSource)>;

}  // namespace assay::models

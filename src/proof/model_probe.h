// ModelProbe: a whole model as the proof sees it. The engine implements it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "proof/report.h"

namespace assay::proof {

// How a text is put into steps.
enum class Arrangement : uint8_t {
  kWhole,    // one prompt, as long pieces as the engine allows
  kCut,      // cut after every 64 tokens
  kBatched,  // cut, each piece together with other sequences' tokens
};

class ModelProbe {
 public:
  virtual ~ModelProbe() = default;
  virtual int32_t vocab() const = 0;
  virtual int32_t most_tokens() const = 0;  // of a text
  // Teacher forced: the fp32 logits [tokens, vocab] after each token of the text.
  virtual std::vector<float> logits(std::span<const int32_t> text, Arrangement arrangement) = 0;
};

// Logits [tokens, vocab] after the first tokens of the text, by reference rows.
struct ReferenceLogits {
  std::vector<float> same;   // in the model's arithmetic; empty: no comparison
  std::vector<float> exact;  // in fp32; empty: the model computes in fp32 itself
};

// `chosen` against the reference, KL per token; and against itself, whole = cut = batched bit for bit, on all of it.
// Limit of the mean KL: 8 times KL(exact || same), the noise that rounding makes in this model on this text (two right
// models differ by about twice that, and tokens where a router's tie breaks otherwise weigh much), but at least 1e-6
// nats; 1e-8 nats in fp32.
ModelVerdict prove_model(ModelProbe& chosen, const ReferenceLogits& reference, std::span<const int32_t> text);

// KL(p || q) of softmaxes, nats. Infinity where a logit is not finite.
double divergence(std::span<const float> p_logits, std::span<const float> q_logits);

}  // namespace assay::proof

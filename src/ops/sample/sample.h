// sample: from logits to a token, its log-probability and the most likely alternatives, one row at a time.
//
// Log-probabilities are of the model, before temperature: logits - logsumexp(logits) over all `vocab` columns, fp32 (a
// reference row may sum in fp64). Tokens come from columns [0, real_vocab) only: the rest are padding rows.
//
//   temperature <= 0: the largest logit, ties to the lowest id.
//   otherwise: p = softmax(logits / temperature) over the real columns, columns sorted by falling logit, ties by rising
//   id; top_k > 0 keeps the first k; top_p < 1 keeps the shortest prefix whose share of those is >= top_p; min_p > 0
//   keeps p >= min_p * p_max; at least one is kept. With u = uniform(seed, counter) in [0, 1), the first kept token
//   whose running sum of p exceeds u * (sum of kept p). uniform: 53 bits of the counter-based generator in
//   sample_random.h; the same seed and counter give the same u in any batch. Sums may take p rounded, by 2^-22 of
//   itself or 2^-35 of the largest p (sample_ranking.h: then they are exact).
//
// Before that, a row's adjustments change the logits that the token is chosen by, and nothing else: log-probabilities
// and alternatives stay the model's. For each adjusted token, in fp32, every operation rounded by itself:
//   logit = logit > 0 ? logit / scale : logit * scale;    logit = logit + add
// where whoever asks for the sample has put (scheduler/adjustments.h):
//   scale: the repetition penalty of tokens in the prompt or generated before, as Hugging Face has it; else 1
//   add:   bias - presence * [count > 0] - frequency * count, count: how often the token was generated, as OpenAI has
//          it; less kBannedLogit for a token that must not come yet
// Finite logits stay finite, so a row whose every token is adjusted is sampled like any other.
//
// target >= 0: nothing is sampled; token = target, and its log-probability is reported (prompt scoring).
// A row with a NaN or +inf logit, or with no finite logit, is never sampled: token = -1, numerical_error set, and the
// sentinel's head word gets kNonFiniteLogits.
#pragma once

#include <span>

#include "ops/batch.h"
#include "ops/impl.h"

namespace assay::ops {

inline constexpr int32_t kMaxTopLogprobs = 20;

// Below any logit of a model; finite, so that among banned tokens alone there still is a largest.
inline constexpr float kBannedLogit = 1e30f;

struct LogitAdjustment {
  int32_t token = 0;  // at most one adjustment of a row names it; of a padding row it does nothing
  float scale = 1;    // 0.01 .. 100
  float add = 0;
};

// The formula above, on the host.
inline float adjusted_logit(float logit, const LogitAdjustment& adjustment) {
  const volatile float scaled = logit > 0 ? logit / adjustment.scale : logit * adjustment.scale;  // not one fma
  return scaled + adjustment.add;
}

struct SampleParams {
  float temperature = 0;
  int32_t top_k = 0;  // 0: all
  float top_p = 1;
  float min_p = 0;
  uint64_t seed = 0;
  uint64_t counter = 0;      // index of the generated token in its sequence
  int32_t top_logprobs = 0;  // how many alternatives to report, at most kMaxTopLogprobs
  int32_t target = -1;
  int32_t first_adjustment = 0;  // into Args::adjustments
  int32_t adjustment_count = 0;
};

struct SampleResult {
  int32_t token = -1;
  float logprob = 0;
  int32_t numerical_error = 0;
  int32_t top_count = 0;
  int32_t top_ids[kMaxTopLogprobs];  // by falling log-probability, ties by rising id; real columns only
  float top_logprobs[kMaxTopLogprobs];
};

struct SampleDesc {
  int32_t vocab = 0;
  int32_t real_vocab = 0;
  bool operator==(const SampleDesc&) const = default;
};
std::string describe(const SampleDesc& desc);

struct SampleOp {
  static constexpr std::string_view kName = "sample";
  using Desc = SampleDesc;
  using Weights = NoWeights;
  struct Args {
    int32_t rows = 0;                      // R
    ConstView logits;                      // F32 [R, vocab]
    const SampleParams* params = nullptr;  // [R]
    SampleResult* results = nullptr;       // [R]
    // Of all rows one after the other; null where no row has any.
    const LogitAdjustment* adjustments = nullptr;
    // The device's copy of R where a captured graph reads it, else null; then `rows` is an upper bound.
    const int32_t* live = nullptr;
  };
  static std::span<const Impl<SampleOp>> impls();
};

}  // namespace assay::ops

// What conv_gates is proven with.
//
// y = round(silu(s)), s a sum of `width` products:
//   dy = 1.1 (sum_error(width, sum|w u|) + u sum|w u|) + (8 + |s|) u |y|; one ulp of y for round(). v shows y itself.
// q, k: the row's y is known exactly where round(y - dy) = round(y + dy); else the middle of the two is taken, e_y
// their distance:
//   S = sum y^2:  dS = sum 2 |y| e_y + sum_error(D, S) + u S
//   r = dS / (2 (S + 1e-6 - dS)) + 6 u >= 1 / sqrt(1 - dS / (S + 1e-6)) - 1 + 6 u
//   accumulated = f e_y / sqrt(S + 1e-6) (1 + r) + |q| r,   f the op's factor; one ulp of fp32
// g = -exp(A) softplus(x), x = a + dt: exp(A) (softplus (16 + |A| + |x|) u + 2 u (|a| + |dt|) softplus'), one ulp of
// fp32. beta: (8 + |b|) u beta, one ulp of fp32. The kept inputs are copied: equal.
#include <algorithm>

#include "numeric/decode.h"
#include "ops/all_cases.h"
#include "ops/case_batch.h"

namespace assay::ops {
namespace {

struct Arrays {
  int qkv, a, b, state, q, k, v, g, beta;
};

struct Weights {
  std::vector<double> conv, a_log, dt_bias;
};

std::vector<double> decoded(const WeightSource& source) {
  const numeric::EncodedMatrix& matrix = source.matrices[0];
  std::vector<double> values(static_cast<size_t>(matrix.rows * matrix.cols));
  for (int64_t row = 0; row < matrix.rows; ++row) numeric::decode_row(matrix, row, values.data() + row * matrix.cols);
  return values;
}

class Judge {
 public:
  Judge(const ConvGatesDesc& desc, const Weights& weights, const Bench& bench, const Arrays& arrays,
        const CaseBatch& batch)
      : desc_(desc), weights_(weights), bench_(bench), arrays_(arrays), batch_(batch) {}

  void token(int64_t t, Comparison& comparison) const {
    const int64_t keys = int64_t{desc_.key_heads} * desc_.key_dim,
                  values = int64_t{desc_.value_heads} * desc_.value_dim;
    for (int32_t h = 0; h < desc_.key_heads; ++h) {
      head(t, h * int64_t{desc_.key_dim}, 0, 1 / std::sqrt(static_cast<double>(desc_.key_dim)), arrays_.q, "q",
           comparison);
      head(t, h * int64_t{desc_.key_dim}, keys, 1, arrays_.k, "k", comparison);
    }
    for (int64_t i = 0; i < values; ++i) {
      const Value y = convolved(t, 2 * keys + i);
      comparison.within(Evidence::kSampled, "v", t, i, bench_.at(arrays_.v, t, i), y.exact,
                        y.error + ulp(desc_.activation, std::abs(y.exact) + y.error));
    }
    for (int32_t h = 0; h < desc_.value_heads; ++h) gates(t, h, comparison);
  }

  void state(size_t s, Comparison& comparison) const {
    const int64_t kept = desc_.width - 1, tokens = batch_.sequences[s].tokens;
    for (int64_t c = 0; c < desc_.channels(); ++c) {
      for (int64_t i = 0; i < kept; ++i) {
        comparison.equal(Evidence::kSampled, "conv state", static_cast<int64_t>(s), c * kept + i,
                         bench_.at(arrays_.state, batch_.state_write[s], c * kept + i), input(s, tokens - kept + i, c));
      }
    }
  }

 private:
  struct Value {
    double exact, error, rounded, uncertain;
  };

  double input(size_t s, int64_t index, int64_t channel) const {
    if (index >= 0) return bench_.initial(arrays_.qkv, batch_.query_start[s] + index, channel);
    const int64_t slot = batch_.state_read[s], kept = desc_.width - 1;
    return slot < 0 ? 0 : bench_.initial(arrays_.state, slot, channel * kept + kept + index);
  }

  Value convolved(int64_t t, int64_t channel) const {
    const auto s = static_cast<size_t>(batch_.sequence_of[static_cast<size_t>(t)]);
    const int64_t index = t - batch_.query_start[s];
    double sum = 0, magnitudes = 0;
    for (int32_t j = 0; j < desc_.width; ++j) {
      const double term = weights_.conv[static_cast<size_t>(channel * desc_.width + j)] *
                          input(s, index - desc_.width + 1 + j, channel);
      sum += term;
      magnitudes += std::abs(term);
    }
    Value y{};
    y.exact = sum / (1 + std::exp(-sum));
    y.error = 1.1 * (sum_error(desc_.width, magnitudes) + kUnit * magnitudes) +
              (8 + std::abs(sum)) * kUnit * std::abs(y.exact) + (sum < -80 ? 1e-33 : 0);
    const double low = round_to_dtype(desc_.activation, y.exact - y.error);
    const double high = round_to_dtype(desc_.activation, y.exact + y.error);
    y.rounded = (low + high) / 2;
    y.uncertain = high - low;
    return y;
  }

  void head(int64_t t, int64_t first, int64_t channel, double factor, int array, const char* name,
            Comparison& comparison) const {
    std::vector<Value> y;
    double squares = 0, error = 0;
    for (int32_t i = 0; i < desc_.key_dim; ++i) {
      y.push_back(convolved(t, channel + first + i));
      squares += y.back().rounded * y.back().rounded;
      error += (2 * std::abs(y.back().rounded) + y.back().uncertain) * y.back().uncertain;
    }
    error += sum_error(desc_.key_dim, squares) + kUnit * squares;
    const double whole = squares + 1e-6, relative = error / (2 * std::max(whole - error, whole / 2)) + 6 * kUnit;
    const double scale = factor / std::sqrt(whole);
    for (int32_t i = 0; i < desc_.key_dim; ++i) {
      const Value& value = y[static_cast<size_t>(i)];
      const double out = value.rounded * scale;
      comparison.within(Evidence::kSampled, name, t, first + i, bench_.at(array, t, first + i), out,
                        value.uncertain * scale * (1 + relative) + std::abs(out) * relative + ulp(DType::kF32, out));
    }
  }

  void gates(int64_t t, int32_t h, Comparison& comparison) const {
    const double a = bench_.initial(arrays_.a, t, h), b = bench_.initial(arrays_.b, t, h);
    const double dt = weights_.dt_bias[static_cast<size_t>(h)], a_log = weights_.a_log[static_cast<size_t>(h)],
                 x = a + dt;
    const double softplus = x > 20 ? x : std::log1p(std::exp(x)), slope = 1 / (1 + std::exp(-x));
    const double g = -std::exp(a_log) * softplus;
    const double error = std::exp(a_log) * (softplus * (16 + std::abs(a_log) + std::abs(x)) * kUnit +
                                            2 * kUnit * (std::abs(a) + std::abs(dt)) * slope);
    comparison.within(Evidence::kSampled, "g", t, h, bench_.at(arrays_.g, t, h), g, error + ulp(DType::kF32, g));
    const double beta = 1 / (1 + std::exp(-b));
    comparison.within(Evidence::kSampled, "beta", t, h, bench_.at(arrays_.beta, t, h), beta,
                      (8 + std::abs(b)) * kUnit * beta + ulp(DType::kF32, beta));
  }

  const ConvGatesDesc& desc_;
  const Weights& weights_;
  const Bench& bench_;
  const Arrays& arrays_;
  const CaseBatch& batch_;
};

}  // namespace

std::vector<Case<ConvGatesOp>> make_cases(const ConvGatesDesc& desc, const ConvGatesOp::Weights& weights,
                                          const CaseContext& context) {
  std::vector<Case<ConvGatesOp>> cases;
  const auto values = std::make_shared<Weights>(Weights{decoded(context.weights.source(weights.conv)),
                                                        decoded(context.weights.source(weights.a_log)),
                                                        decoded(context.weights.source(weights.dt_bias))});
  for (const CaseSteps& steps : case_steps(context, false, {CaseValues::kVanishing, CaseValues::kNotFinite})) {
    CaseRandom random(context.seed + cases.size());
    const auto batch = std::make_shared<CaseBatch>(steps.sequences, random);
    const int32_t tokens = batch->tokens();
    const int64_t keys = int64_t{desc.key_heads} * desc.key_dim,
                  out_values = int64_t{desc.value_heads} * desc.value_dim;
    const int64_t kept = desc.channels() * (desc.width - 1);
    Case<ConvGatesOp> made;
    made.name = steps.name;
    made.work = tokens * desc.channels() * 16;
    made.bucket = batch->bucket();
    made.bench = std::make_unique<Bench>(context.device, cases.size() % 2 == 0);
    Bench& bench = *made.bench;
    Arrays arrays{};
    // Of the last sequence the last token, the first of those that are kept, and one before: that one is not flagged.
    const bool not_finite = steps.values == CaseValues::kNotFinite, vanishing = steps.values == CaseValues::kVanishing;
    const int64_t bad = steps.variant == 0 ? tokens - 1 : tokens - desc.width + (steps.variant == 1 ? 1 : 0);
    const int64_t bad_channel = steps.variant == 1 ? 0 : desc.channels() - 1;  // of the first head, or of the last
    const double bad_value = steps.variant == 1 ? INFINITY : std::nan(""), factor = vanishing ? 0x1p-14 : 1;
    if (not_finite && steps.variant < 2) made.flags = Sentinel::kNonFiniteState;
    const auto gate = [&](int64_t t, int64_t h) { return random.normal() * ((t + h) % 5 == 0 ? 12 : 2); };
    arrays.qkv =
        bench.add("qkv", desc.activation, tokens, desc.channels(), Role::kInput, 64, [&](int64_t t, int64_t c) {
          if (not_finite && t == bad && c == bad_channel) return bad_value;
          return factor * mixed_input(random, vanishing || t % 8 == 4 ? 0 : t, c);
        });
    arrays.a = bench.add("a", desc.activation, tokens, desc.value_heads, Role::kInput, desc.value_heads, gate);
    arrays.b = bench.add("b", desc.activation, tokens, desc.value_heads, Role::kInput, desc.value_heads, gate);
    arrays.state =
        bench.add("conv state", desc.activation, batch->slots(), kept, Role::kInOut, 64, [&](int64_t slot, int64_t c) {
          const bool read =
              std::find(batch->state_read.begin(), batch->state_read.end(), slot) != batch->state_read.end();
          return read ? random.normal() : case_poison(slot + c);
        });
    for (size_t s = 0; s < batch->sequences.size(); ++s) {
      if (batch->sequences[s].tokens == 0) continue;
      bench.expect_written(arrays.state, batch->state_write[s] * bench.view(arrays.state).stride, kept);
    }
    arrays.q = bench.add("q", DType::kF32, tokens, keys, Role::kOutput, 64);
    arrays.k = bench.add("k", DType::kF32, tokens, keys, Role::kOutput, 64);
    arrays.v = bench.add("v", desc.activation, tokens, out_values, Role::kOutput, 64);
    arrays.g = bench.add("g", DType::kF32, tokens, desc.value_heads, Role::kOutput, 0);
    arrays.beta = bench.add("beta", DType::kF32, tokens, desc.value_heads, Role::kOutput, 0);
    RecurrentStateView state;
    state.conv = bench.view(arrays.state).data;
    state.conv_dtype = desc.activation;
    state.conv_stride = bench.view(arrays.state).stride;
    made.args = {batch->place(bench, steps.decode),
                 bench.view(arrays.qkv),
                 bench.view(arrays.a),
                 bench.view(arrays.b),
                 state,
                 bench.view(arrays.q),
                 bench.view(arrays.k),
                 bench.view(arrays.v),
                 bench.view(arrays.g),
                 bench.view(arrays.beta)};
    made.digest = !not_finite;                              // NaNs have many encodings
    const bool has_nan = not_finite && steps.variant != 1;  // a NaN must be in v of every token that sees it
    made.judge = [&bench, desc, values, arrays, batch, tokens, not_finite, bad, has_nan,
                  last_value = out_values - 1](Comparison& comparison) {
      const Judge judge(desc, *values, bench, arrays, *batch);
      const int32_t step = std::max(1, tokens / 8), end = not_finite ? batch->query_start.rbegin()[1] : tokens;
      for (int32_t t = end - 1; t >= 0; t -= step) judge.token(t, comparison);
      for (size_t s = 0; s < batch->sequences.size(); ++s) {
        if (batch->sequences[s].tokens > 0) judge.state(s, comparison);
      }
      for (int64_t t = bad; has_nan && t < std::min<int64_t>(tokens, bad + desc.width); ++t) {
        comparison.within(Evidence::kSampled, "v", t, last_value, bench.at(arrays.v, t, last_value), std::nan(""), 0);
      }
    };
    cases.push_back(std::move(made));
  }
  return cases;
}

ConvGatesOp::Weights synthetic(const ConvGatesDesc& desc, CaseWeights& weights, CaseRandom& random) {
  constexpr auto kBf16 = numeric::WeightFormat::kBf16;
  ConvGatesOp::Weights ids{};
  ids.conv = weights.add({{kBf16, desc.channels(), desc.width}}, 0.7, random);
  ids.a_log = weights.add({{kBf16, 1, desc.value_heads}}, 1.0, random);
  ids.dt_bias = weights.add({{kBf16, 1, desc.value_heads}}, 1.0, random);
  return ids;
}

}  // namespace assay::ops

// What gated_delta is proven with.
//
// A componentwise bound of a recurrence explodes; a normwise one does not. For one column S of a head's state,
// ||k|| <= 1 and 0 <= beta <= 1, the step S -> decay (I - beta k k^T) S + beta v k does not stretch an error, so
//   |e'| <= decay |e| + local
//   local = (8 + |g|) u decay |S| + 4 u |k| |d| + |k| beta (sum_error(D, sum|decay S k|) + (6 + |g|) u sum|decay S k| +
//   3 u |v|)
// where 8 + |g| covers the exponential, its argument's rounding, the product and the sum. The output adds
//   |q| |e'| + sum_error(D, sum|S' q|), and one ulp.
// e starts at zero: the row's own state before the step is the input of the definition.
//
// kGatedDeltaChunkOrder, prefill tokens: with S the state before a chunk of n tokens and L_ij = exp(G_i - G_j), L_i0 =
// exp(G_i), the chunk solves (I + A) D = R (gated_delta_cuda_chunk.cu). An error rho_i in line i of that system acts as
// one of d_i does, so |e| grows as above with local = |k_i| rho_i. By norms, as |k_i.k_j| <= |k_i| |k_j|:
//   rho_i = beta_i (p(D, L_i0 sum|S k_i|) + (9 + |G_i|) u L_i0 |S^T k_i| + 3 u |v_i|)                  in R
//         + beta_i |k_i| (p(D, 1) + (8 + |G_i|) u) sum_{j<i} L_ij |k_j| |d_j|                          in A
//         + beta_i |k_i| sum_error(n, 1) sum_{j<i} L_ij |k_j| tau_j                                    in T
//         + (p(n, 1) + u) tau_i                                                                        in D = T R
//   tau_i = |r_i| + beta_i |k_i| sum_{j<i} L_ij |k_j| |r_j| >= sum_j |T_ij r_j|: T_ij = -beta_i L_ij k_i^T C k_j,
//   C the contractions of the tokens between
// The output adds p(D, L_i0 sum|S q_i|) + (9 + |G_i|) u L_i0 |S^T q_i| and |q_i| (p(D, 1) + p(n, 1) + (9 + |G_i|) u)
// sum_{j<=i} L_ij |k_j| |d_j|; the state after the chunk (p(n, 1) + (9 + |G_n|) u) (L_n0 |S| + sum_j L_nj |k_j| |d_j|).
//   p(K, x), K products in three tf32 passes: sum_error(K, x), 32 u x for what the factors leave out, and 2 u x for
//   each of 3 K / 8 instructions, of which sum_error has K / 8 u
#include <algorithm>
#include <optional>

#include "ops/all_cases.h"
#include "ops/case_batch.h"
#include "ops/gated_delta/gated_delta_rows.h"

namespace assay::ops {
namespace {

constexpr int64_t kCheckWork = 2'000'000;

struct Arrays {
  int q, k, v, g, beta, state, out;
};

double norm(std::span<const double> x) {
  double squares = 0;
  for (double value : x) squares += value * value;
  return std::sqrt(squares);
}

constexpr int64_t kChunk = 64;

double passes_error(int64_t terms, double magnitudes) {
  return sum_error(terms, magnitudes) + (32 + 0.625 * static_cast<double>(terms)) * kUnit * magnitudes;
}

// One token of one column.
struct TokenTerms {
  double g, decay, beta, v, delta, k_norm, q_norm;
  std::span<const double> k, q;
};

// What the chunked order loses in one column, from the start of a chunk on.
class ChunkError {
 public:
  explicit ChunkError(std::span<const double> state) : state_(state.begin(), state.end()), state_norm_(norm(state)) {}

  // rho of the next token; output() and after() then speak of that token.
  double local(const TokenTerms& token) {
    total_ += token.g;
    for (double* sum : {&deltas_, &rests_, &solved_}) *sum *= token.decay;
    const double opening = std::exp(total_);
    const Projection memory = project(token.k);
    const double rest = token.beta * std::abs(token.v - opening * memory.sum);
    const double tau = rest + token.beta * token.k_norm * rests_;
    const double rho =
        token.beta * (opening * (passes_error(size(), memory.magnitudes) + factor(9) * std::abs(memory.sum)) +
                      3 * kUnit * std::abs(token.v)) +
        token.beta * token.k_norm * ((passes_error(size(), 1) + factor(8)) * deltas_ + sum_error(kChunk, 1) * solved_) +
        (passes_error(kChunk, 1) + kUnit) * tau;
    deltas_ += token.k_norm * std::abs(token.delta);
    rests_ += token.k_norm * rest;
    solved_ += token.k_norm * tau;
    return rho;
  }
  double output(const TokenTerms& token) const {
    const Projection old = project(token.q);
    return std::exp(total_) * (passes_error(size(), old.magnitudes) + factor(9) * std::abs(old.sum)) +
           token.q_norm * (passes_error(size(), 1) + passes_error(kChunk, 1) + factor(9)) * deltas_;
  }
  double after() const { return (passes_error(kChunk, 1) + factor(9)) * (std::exp(total_) * state_norm_ + deltas_); }

 private:
  struct Projection {
    double sum = 0, magnitudes = 0;
  };
  Projection project(std::span<const double> on) const {
    Projection result;
    for (size_t i = 0; i < on.size(); ++i) {
      result.sum += state_[i] * on[i];
      result.magnitudes += std::abs(state_[i] * on[i]);
    }
    return result;
  }
  int64_t size() const { return static_cast<int64_t>(state_.size()); }
  double factor(double constant) const { return (constant + std::abs(total_)) * kUnit; }

  std::vector<double> state_;  // before the chunk
  double state_norm_;
  double total_ = 0;                            // G
  double deltas_ = 0, rests_ = 0, solved_ = 0;  // sums of L |k| times |d|, |r| and tau
};

class Judge {
 public:
  Judge(const GatedDeltaDesc& desc, const Bench& bench, const Arrays& arrays, const CaseBatch& batch, int32_t decode,
        Evidence kind)
      : desc_(desc), bench_(bench), arrays_(arrays), batch_(batch), decode_(decode), kind_(kind) {}

  // All tokens of a sequence for one column of one head.
  void column(size_t s, int32_t head, int32_t column, Comparison& comparison) {
    const auto size = static_cast<size_t>(desc_.key_dim);
    const int64_t matrix = int64_t{head} * desc_.key_dim * desc_.value_dim;
    const int64_t value = int64_t{head} * desc_.value_dim + column;
    read_vectors(s, head / (desc_.value_heads / desc_.key_heads));
    std::vector<double> state(size);
    if (batch_.state_read[s] >= 0) {
      for (size_t i = 0; i < size; ++i) {
        state[i] = bench_.initial(arrays_.state, batch_.state_read[s],
                                  matrix + static_cast<int64_t>(i) * desc_.value_dim + column);
      }
    }
    const int64_t begin = batch_.query_start[s], end = batch_.query_start[s + 1];
    const bool chunked = comparison.order() == kGatedDeltaChunkOrder && begin >= decode_;
    std::optional<ChunkError> chunk;
    double error = 0;
    for (int64_t t = begin; t < end; ++t) {
      if (chunked && (t == begin || batch_.positions[static_cast<size_t>(t)] % kChunk == 0)) {
        if (chunk) error += chunk->after();
        chunk.emplace(state);
      }
      const double g = bench_.initial(arrays_.g, t, head), decay = std::exp(g),
                   beta = bench_.initial(arrays_.beta, t, head);
      const double v = bench_.initial(arrays_.v, t, value);
      const Vectors& vectors = vectors_[static_cast<size_t>(t - begin)];
      const std::span<const double> k = vectors.k, q = vectors.q;
      const double k_norm = vectors.k_norm, q_norm = vectors.q_norm;
      double memory = 0, magnitudes = 0;
      for (size_t i = 0; i < size; ++i) {
        memory += decay * state[i] * k[i];
        magnitudes += std::abs(decay * state[i] * k[i]);
      }
      const double delta = beta * (v - memory);
      const TokenTerms token{g, decay, beta, v, delta, k_norm, q_norm, k, q};
      if (chunk) {
        error = decay * error + k_norm * chunk->local(token);
      } else {
        error = decay * error + (8 + std::abs(g)) * kUnit * decay * norm(state) + 4 * kUnit * k_norm * std::abs(delta) +
                k_norm * beta *
                    (sum_error(desc_.key_dim, magnitudes) + (6 + std::abs(g)) * kUnit * magnitudes +
                     3 * kUnit * std::abs(v));
      }
      double out = 0, out_magnitudes = 0;
      for (size_t i = 0; i < size; ++i) {
        state[i] = decay * state[i] + k[i] * delta;
        out += state[i] * q[i];
        out_magnitudes += std::abs(state[i] * q[i]);
      }
      const double summed = chunk ? chunk->output(token) : sum_error(desc_.key_dim, out_magnitudes);
      const double accumulated = q_norm * error + summed + kUnit * out_magnitudes;
      comparison.within(kind_, "out", t, value, bench_.at(arrays_.out, t, value), out,
                        accumulated + ulp(desc_.activation, std::abs(out) + accumulated));
    }
    if (chunk) error += chunk->after();
    double squares = 0;
    for (size_t i = 0; i < size; ++i) {
      const double got =
          bench_.at(arrays_.state, batch_.state_write[s], matrix + static_cast<int64_t>(i) * desc_.value_dim + column);
      squares += (got - state[i]) * (got - state[i]);
    }
    comparison.within(Evidence::kSampled, "norm of the error of a column of S, head", head, column, std::sqrt(squares),
                      0, error + 1e-37);
  }

 private:
  // Of one token and one key head.
  struct Vectors {
    std::vector<double> k, q;
    double k_norm, q_norm;
  };
  // Of the sequence's tokens, unless the last call was for the same.
  void read_vectors(size_t s, int32_t key_head) {
    if (sequence_ == s && key_head_ == key_head) return;
    sequence_ = s;
    key_head_ = key_head;
    vectors_.clear();
    const int64_t first = int64_t{key_head} * desc_.key_dim;
    const auto read = [&](int array, int64_t t) {
      std::vector<double> values(static_cast<size_t>(desc_.key_dim));
      for (size_t i = 0; i < values.size(); ++i) values[i] = bench_.initial(array, t, first + static_cast<int64_t>(i));
      return values;
    };
    for (int64_t t = batch_.query_start[s]; t < batch_.query_start[s + 1]; ++t) {
      Vectors made{read(arrays_.k, t), read(arrays_.q, t), 0, 0};
      made.k_norm = norm(made.k);
      made.q_norm = norm(made.q);
      vectors_.push_back(std::move(made));
    }
  }

  const GatedDeltaDesc& desc_;
  const Bench& bench_;
  const Arrays& arrays_;
  const CaseBatch& batch_;
  int32_t decode_;
  Evidence kind_;
  std::optional<size_t> sequence_;
  int32_t key_head_ = 0;
  std::vector<Vectors> vectors_;
};

// Vectors of which three places are not zero, a distance apart that differs from sequence to sequence. The state holds
// there L, little and -L in each column. Of the even sequences q has equal values at the outer two, and k is zero: what
// is left of S^T q is little. Of the odd ones it is k, and q sees what beta v - S^T k left in the middle.
class Cancelling {
 public:
  explicit Cancelling(int32_t dim) : dim_(dim) {}
  bool possible() const { return dim_ >= 3; }
  double q(int64_t s, int64_t i) const {
    return s % 2 == 0 ? (place(s, i) >= 0 ? 0.0625 : 0) : place(s, i) == 1 ? 1 : 0;
  }
  double k(int64_t s, int64_t i) const { return s % 2 == 1 && place(s, i) >= 0 ? 0.5 : 0; }
  double state(int64_t s, int64_t i, int64_t column) const {
    const double large = 1 + static_cast<double>((7 * column + 3 * s) % 128) / 128;
    const int32_t at = place(s, i);
    return at < 0 ? 0 : at == 1 ? large * 0x1.8p-12 : at == 0 ? large : -large;
  }

 private:
  // 0, 1 or 2 of the three; else -1.
  int32_t place(int64_t s, int64_t i) const {
    const int64_t distance = std::min<int64_t>(int64_t{1} << (s / 2), (dim_ - 1) / 2);
    const int64_t from = i - s % std::max<int64_t>(1, dim_ - 2 * distance);
    return from >= 0 && from <= 2 * distance && from % distance == 0 ? static_cast<int32_t>(from / distance) : -1;
  }
  int32_t dim_;
};

// Unit vectors per head, times `length`.
std::vector<double> unit_heads(int32_t tokens, int32_t heads, int32_t dim, double length, CaseRandom& random) {
  std::vector<double> values(static_cast<size_t>(tokens) * static_cast<size_t>(heads * dim));
  for (size_t first = 0; first < values.size(); first += static_cast<size_t>(dim)) {
    const std::span<double> head(values.data() + first, static_cast<size_t>(dim));
    for (double& value : head) value = random.normal();
    const double factor = length * (1 - 0x1p-20) / norm(head);  // rounded to fp32 it is still no longer than 1
    for (double& value : head) value *= factor;
  }
  return values;
}

}  // namespace

std::vector<Case<GatedDeltaOp>> make_cases(const GatedDeltaDesc& desc, const NoWeights&, const CaseContext& context) {
  std::vector<Case<GatedDeltaOp>> cases;
  for (const CaseSteps& steps : case_steps(context, false, {CaseValues::kCancelling, CaseValues::kNotFinite}, 5)) {
    const bool cancelling = steps.values == CaseValues::kCancelling,
               not_finite = steps.values == CaseValues::kNotFinite;
    const Cancelling sparse(desc.key_dim);
    if (cancelling && !sparse.possible()) continue;
    CaseRandom random(context.seed + cases.size());
    const auto batch = std::make_shared<CaseBatch>(steps.sequences, random);
    const int32_t tokens = batch->tokens();
    const int64_t keys = int64_t{desc.key_heads} * desc.key_dim, values = int64_t{desc.value_heads} * desc.value_dim;
    const int64_t elements = values * desc.key_dim;
    Case<GatedDeltaOp> made;
    made.name = steps.name;
    made.work = 4 * tokens * elements;
    made.bucket = batch->bucket();
    made.bench = std::make_unique<Bench>(context.device, cases.size() % 2 == 0);
    Bench& bench = *made.bench;
    const auto unit_k = unit_heads(tokens, desc.key_heads, desc.key_dim, 1, random);
    const auto unit_q =
        unit_heads(tokens, desc.key_heads, desc.key_dim, 1 / std::sqrt(static_cast<double>(desc.key_dim)), random);
    const auto from = [keys](const std::vector<double>& list) {
      return [&list, keys](int64_t t, int64_t i) { return list[static_cast<size_t>(t * keys + i)]; };
    };
    Arrays arrays{};
    // Not finite: v, and with it the state, in the last column; a state that is read, in a column with sixteen and more
    // behind it; q, which no state keeps; v in the last column before those behind the last multiple of sixteen; a
    // state that is read, in the first column.
    if (not_finite && steps.variant != 2) made.flags = Sentinel::kNonFiniteState;
    const int64_t last = tokens - 1, sixteens = desc.value_dim - desc.value_dim % 16;
    const bool bad_read = not_finite && (steps.variant == 1 || steps.variant == 4);
    const int64_t bad_state = steps.variant == 4 ? 0 : std::max<int64_t>(0, sixteens - 32);
    const int64_t bad_value = steps.variant == 0 ? desc.value_dim - 1 : std::max<int64_t>(0, sixteens - 1);
    arrays.q = bench.add("q", DType::kF32, tokens, keys, Role::kInput, 64, [&](int64_t t, int64_t i) {
      if (cancelling) return sparse.q(t, i % desc.key_dim);
      return not_finite && steps.variant == 2 && t == last ? std::nan("") : from(unit_q)(t, i);
    });
    arrays.k = bench.add("k", DType::kF32, tokens, keys, Role::kInput, 64, [&](int64_t t, int64_t i) {
      return cancelling ? sparse.k(t, i % desc.key_dim) : from(unit_k)(t, i);
    });
    arrays.v = bench.add("v", desc.activation, tokens, values, Role::kInput, 64, [&](int64_t t, int64_t i) {
      if (cancelling) return 0.0;
      const bool chosen = not_finite && (steps.variant == 0 || steps.variant == 3) && t == last;
      if (chosen && i == values - desc.value_dim + bad_value) return std::nan("");
      return mixed_input(random, t % 8 == 4 ? 0 : t, i);
    });
    arrays.g = bench.add("g", DType::kF32, tokens, desc.value_heads, Role::kInput, 0, [&](int64_t t, int64_t h) {
      const double u = random.uniform();
      if (cancelling) return 0.0;
      return (t + h) % 7 == 3 ? -30 * u : (t + h) % 7 == 5 ? -1e-4 * u : -u;  // forgets nearly all, nothing, some
    });
    arrays.beta = bench.add("beta", DType::kF32, tokens, desc.value_heads, Role::kInput, 0,
                            [&](int64_t, int64_t) { return random.uniform(); });
    std::vector<bool> read(static_cast<size_t>(batch->slots()));
    for (const int32_t slot : batch->state_read) {
      if (slot >= 0) read[static_cast<size_t>(slot)] = true;
    }
    const CaseNoise noise(random);
    arrays.state =
        bench.add("state", DType::kF32, batch->slots(), elements, Role::kInOut, 64, [&](int64_t slot, int64_t i) {
          if (!read[static_cast<size_t>(slot)]) return case_poison(slot + i);
          if (cancelling) return sparse.state(slot / 2, i / desc.value_dim % desc.key_dim, i % desc.value_dim);
          return bad_read && slot == 0 && i == elements - desc.value_dim + bad_state ? INFINITY
                                                                                     : 0.3 * noise.at(slot, i);
        });
    for (size_t s = 0; s < batch->sequences.size(); ++s) {
      if (batch->sequences[s].tokens == 0) continue;
      bench.expect_written(arrays.state, batch->state_write[s] * bench.view(arrays.state).stride, elements);
    }
    arrays.out = bench.add("out", desc.activation, tokens, values, Role::kOutput, 64);
    RecurrentStateView state;
    state.delta = bench.pointer<float>(arrays.state);
    state.delta_stride = bench.view(arrays.state).stride;
    made.args = {batch->place(bench, steps.decode),
                 bench.view(arrays.q),
                 bench.view(arrays.k),
                 bench.view(arrays.v),
                 bench.view(arrays.g),
                 bench.view(arrays.beta),
                 state,
                 bench.view(arrays.out)};
    const uint64_t seed = context.seed;
    const int64_t work = context.effort == Effort::kFull ? 16 * kCheckWork : kCheckWork;
    const Evidence kind = cancelling ? Evidence::kAccumulator : Evidence::kSampled;
    // Of the sequence with what is not finite the flags are judged, and of the others that nothing came of it.
    const size_t count = batch->sequences.size(), bad = !not_finite ? count : bad_read ? 0 : count - 1;
    made.digest = !not_finite;  // NaNs have many encodings
    made.judge = [&bench, desc, arrays, batch, tokens, seed, work, kind, bad,
                  decode = steps.decode](Comparison& comparison) {
      Judge judge(desc, bench, arrays, *batch, decode, kind);
      const int64_t columns = int64_t{desc.value_heads} * desc.value_dim;
      // Odd, so that all residues of a tile are met in turn.
      const int64_t step = std::max<int64_t>(1, 4 * tokens * columns * desc.key_dim / work) | 1;
      for (size_t s = 0; s < batch->sequences.size(); ++s) {
        if (batch->sequences[s].tokens == 0 || s == bad) continue;
        for (int64_t c = static_cast<int64_t>((seed + s) % static_cast<uint64_t>(step)); c < columns; c += step) {
          judge.column(s, static_cast<int32_t>(c / desc.value_dim), static_cast<int32_t>(c % desc.value_dim),
                       comparison);
        }
      }
    };
    cases.push_back(std::move(made));
  }
  return cases;
}

}  // namespace assay::ops

// What attention is proven with.
//
// Bound, for one head of one token over n positions, p the exact softmax, o = sum p v:
//   ds_j = scale sum_error(D, sum|q k|) + 3 u |s_j|   [+ u scale sum|q k| where a factor is fp32]
//   a weight is exp(s_j - max) with relative error ds_j + (6 + 2 (max - s_j)) u (exponential, its argument's rounding,
//   and the rescaling when a larger maximum is met); each moves o by p_j |v_j - o| accumulated = sum p_j |v_j - o|
//   (ds_j + (6 + 2 (max - s_j)) u) + sum_error(n, sum p|v|) + sum_error(n, 1) |o| + 4 u |o| times the gate, which adds
//   (8 + |g|) u |o gate| rounding    = ulp(out)
// lse: sum p_j ds_j + sum_error(n, 1) + 4 u (|lse| + 1), and one ulp of fp32.
//
// kAttentionTilesOrder, prefill tokens: every weight is rounded to bf16, relatively by 2^-8 at most (which covers its
// exponential, within 2^-22), before the sum of weights and that of values both read it. With w = 2^-8:
//   out  min(6 w sqrt(sum (p_j |v_j - o|)^2), 2 w sum p_j |v_j - o|), the first statistical
//   lse  min(6 w sqrt(sum p_j^2), 2 w)
#include <algorithm>

#include "ops/all_cases.h"
#include "ops/attention/attention_rows.h"
#include "ops/case_batch.h"

namespace assay::ops {
namespace {

constexpr int64_t kCheckWork = 2'000'000;

struct Arrays {
  int q, gate, k, v, out, lse;
};

struct Checked {
  int64_t token;
  int32_t head;
};

struct Element {
  double value, accumulated;
  double weights;  // what weights in bf16 add
};
struct Expected {
  std::vector<Checked> checked;
  std::vector<std::vector<Element>> out;  // [checked][head_dim]
  std::vector<Element> lse;
};

// The error of a sum whose terms are rounded to bf16: sizes of the terms.
double rounded_terms(double squares, double sizes) {
  constexpr double kBf16Unit = 0x1p-8;
  return std::min(6 * kBf16Unit * std::sqrt(squares), 2 * kBf16Unit * sizes);
}

class Definition {
 public:
  // terms: how many products of a score are not zero.
  Definition(const AttentionDesc& desc, const Bench& bench, const Arrays& arrays, const CaseBatch& batch,
             int64_t page_stride, int32_t terms)
      : desc_(desc), bench_(bench), arrays_(arrays), batch_(batch), page_stride_(page_stride), terms_(terms) {}

  void compute(const Checked& which, Expected& expected) const {
    const int32_t position = batch_.positions[static_cast<size_t>(which.token)], dim = desc_.head_dim;
    const auto n = static_cast<size_t>(position) + 1;
    std::vector<double> query(static_cast<size_t>(dim)), scores(n), errors(n);
    for (int32_t d = 0; d < dim; ++d)
      query[static_cast<size_t>(d)] = bench_.initial(arrays_.q, which.token, which.head * dim + d);
    double largest = -INFINITY;
    const bool inexact = desc_.activation == DType::kF32 || desc_.cache == DType::kF32;
    for (size_t j = 0; j < n; ++j) {
      double sum = 0, magnitudes = 0;
      const int64_t at = offset(which, static_cast<int32_t>(j));
      for (int32_t d = 0; d < dim; ++d) {
        const double term = query[static_cast<size_t>(d)] * bench_.initial(arrays_.k, 0, at + d);
        sum += term;
        magnitudes += std::abs(term);
      }
      scores[j] = desc_.scale * sum;
      errors[j] = desc_.scale * (sum_error(terms_, magnitudes) + (inexact ? kUnit * magnitudes : 0)) +
                  3 * kUnit * std::abs(scores[j]);
      largest = std::max(largest, scores[j]);
    }
    double total = 0;
    for (double score : scores) total += std::exp(score - largest);
    std::vector<double> out(static_cast<size_t>(dim)), absolute(out), moved(out), apart(out), apart_squares(out);
    double lse_error = 0, weight_squares = 0;
    for (size_t j = 0; j < n; ++j) {
      const double p = std::exp(scores[j] - largest) / total;
      lse_error += p * errors[j];
      weight_squares += p * p;
      const int64_t at = offset(which, static_cast<int32_t>(j));
      for (int32_t d = 0; d < dim; ++d) out[static_cast<size_t>(d)] += p * bench_.initial(arrays_.v, 0, at + d);
    }
    for (size_t j = 0; j < n; ++j) {
      const double p = std::exp(scores[j] - largest) / total;
      const double weight_error = errors[j] + (6 + 2 * (largest - scores[j])) * kUnit;
      const int64_t at = offset(which, static_cast<int32_t>(j));
      for (int32_t d = 0; d < dim; ++d) {
        const double v = bench_.initial(arrays_.v, 0, at + d);
        const auto i = static_cast<size_t>(d);
        const double distance = p * std::abs(v - out[i]);
        absolute[i] += p * std::abs(v);
        moved[i] += distance * weight_error;
        apart[i] += distance;
        apart_squares[i] += distance * distance;
      }
    }
    std::vector<Element> elements;
    const auto count = static_cast<int64_t>(n);
    for (int32_t d = 0; d < dim; ++d) {
      const auto i = static_cast<size_t>(d);
      double accumulated =
          moved[i] + sum_error(count, absolute[i]) + (sum_error(count, 1) + 4 * kUnit) * std::abs(out[i]);
      double value = out[i], weights = rounded_terms(apart_squares[i], apart[i]);
      if (desc_.output_gate) {
        const double gate = bench_.initial(arrays_.gate, which.token, int64_t{2} * which.head * dim + d);
        const double open = 1 / (1 + std::exp(-gate));
        value *= open;
        weights *= open;
        accumulated = accumulated * open + (8 + std::abs(gate)) * kUnit * std::abs(value);
      }
      elements.push_back({value, accumulated, weights});
    }
    const double lse = largest + std::log(total);
    expected.lse.push_back(
        {lse, lse_error + sum_error(count, 1) + 4 * kUnit * (std::abs(lse) + 1), rounded_terms(weight_squares, 1)});
    expected.checked.push_back(which);
    expected.out.push_back(std::move(elements));
  }

 private:
  int64_t offset(const Checked& which, int32_t position) const {
    const int32_t kv_head = which.head / (desc_.heads / desc_.kv_heads);
    return batch_.page(which.token, position) * page_stride_ +
           (int64_t{kv_head} * kCasePageTokens + position % kCasePageTokens) * desc_.head_dim;
  }
  const AttentionDesc& desc_;
  const Bench& bench_;
  const Arrays& arrays_;
  const CaseBatch& batch_;
  int64_t page_stride_;
  int32_t terms_;
};

// Decode tokens of which little is left of two large terms. Of the even sequences, of three positions, the query is
// zero and the values are L, little and -L. Of the odd ones, of two positions, query and first key have three places
// that are not zero, a distance apart that differs from sequence to sequence, and whose outer products cancel.
class Cancelling {
 public:
  Cancelling(const AttentionDesc& desc, uint64_t seed) : desc_(desc), seed_(seed) {}
  bool possible() const { return desc_.head_dim >= 3; }
  double q(int64_t s, int64_t col) const {
    const int64_t kv_head = col / desc_.head_dim / (desc_.heads / desc_.kv_heads);
    const int32_t at = place(s, col % desc_.head_dim);
    return s % 2 == 0 || at < 0 ? 0 : at == 1 ? middle() : outer(s, kv_head, at);
  }
  double k(int64_t s, int64_t kv_head, int64_t position, int64_t d) const {
    const int32_t at = place(s, d);
    if (s % 2 == 0 || position > 0 || at < 0) return 0;
    return at == 1 ? middle() : at == 0 ? outer(s, kv_head, 2) : -outer(s, kv_head, 0);
  }
  double v(int64_t s, int64_t position, int64_t d) const {
    if (s % 2 == 1) return position == 0 ? 1 + static_cast<double>(d % 64) / 64 : -1;
    const double large = 1 + static_cast<double>((5 * d + s) % 128) / 128;
    return position == 0 ? large : position == 1 ? large * 0x1.8p-12 : -large;
  }

 private:
  int32_t place(int64_t s, int64_t d) const {  // 0, 1 or 2 of the three; else -1
    const int64_t distance = std::min<int64_t>(int64_t{4} << (s / 2), (desc_.head_dim - 1) / 2);
    return d <= 2 * distance && d % distance == 0 ? static_cast<int32_t>(d / distance) : -1;
  }
  double middle() const { return round_to_dtype(DType::kBf16, 1 / std::sqrt(static_cast<double>(desc_.scale))); }
  double outer(int64_t s, int64_t kv_head, int32_t at) const {
    CaseRandom random(seed_ + static_cast<uint64_t>(101 * s + 7 * kv_head + at));
    return round_to_dtype(DType::kBf16, 64 * (1 + random.uniform()) * middle());
  }
  const AttentionDesc& desc_;
  uint64_t seed_;
};

// Keys and values of live positions; everything else on a page, and free pages, hold what must not be read.
// cancelling: null, or what there is instead of random values.
void add_cache(const AttentionDesc& desc, const CaseBatch& batch, const Cancelling* cancelling, CaseRandom& random,
               Bench& bench, Arrays& arrays) {
  const int64_t page = int64_t{desc.kv_heads} * kCasePageTokens * desc.head_dim;
  std::vector<int32_t> live(static_cast<size_t>(batch.page_count), 0);
  for (size_t s = 0; s < batch.sequences.size(); ++s) {
    const int32_t end = batch.sequences[s].position + batch.sequences[s].tokens;
    for (int32_t first = 0; first < end; first += kCasePageTokens) {
      const auto index = s * static_cast<size_t>(batch.stride) + static_cast<size_t>(first / kCasePageTokens);
      live[static_cast<size_t>(batch.page_table[index])] = std::min(kCasePageTokens, end - first);
    }
  }
  std::vector<int64_t> first_of(static_cast<size_t>(batch.page_count), -1);  // the sequence whose first page it is
  for (size_t s = 0; s < batch.sequences.size(); ++s) {
    const int32_t page = batch.page_table[s * static_cast<size_t>(batch.stride)];
    if (page >= 0) first_of[static_cast<size_t>(page)] = static_cast<int64_t>(s);
  }
  const CaseNoise noise(random);
  const auto value = [&](int64_t row, int64_t col, bool key) {
    const auto slot = static_cast<int32_t>(col / desc.head_dim % kCasePageTokens);
    if (slot >= live[static_cast<size_t>(row)]) return case_poison(row + slot);
    if (cancelling != nullptr) {
      const int64_t s = first_of[static_cast<size_t>(row)], d = col % desc.head_dim;
      return key ? cancelling->k(s, col / desc.head_dim / kCasePageTokens, slot, d) : cancelling->v(s, slot, d);
    }
    return noise.at(2 * row + (key ? 0 : 1), col) * (slot % 19 == 3 ? 4 : 1) * (1 + 0.1 * static_cast<double>(row % 7));
  };
  arrays.k = bench.add("k cache", desc.cache, batch.page_count, page, Role::kInput, 64,
                       [&](int64_t row, int64_t col) { return value(row, col, true); });
  arrays.v = bench.add("v cache", desc.cache, batch.page_count, page, Role::kInput, 64,
                       [&](int64_t row, int64_t col) { return value(row, col, false); });
}

}  // namespace

std::vector<Case<AttentionOp>> make_cases(const AttentionDesc& desc, const NoWeights&, const CaseContext& context) {
  std::vector<Case<AttentionOp>> cases;
  for (const CaseSteps& steps : case_steps(context, true, {CaseValues::kCancelling})) {
    const Cancelling sparse(desc, context.seed);
    const bool cancelling = steps.values == CaseValues::kCancelling;
    if (cancelling && !sparse.possible()) continue;
    CaseRandom random(context.seed + cases.size());
    const auto batch = std::make_shared<CaseBatch>(steps.sequences, random);
    const int32_t tokens = batch->tokens();
    const int64_t width = int64_t{desc.heads} * desc.head_dim;
    Case<AttentionOp> made;
    made.name = steps.name;
    int64_t positions = 0;
    for (int32_t position : batch->positions) positions += position + 1;
    made.work = 2 * positions * width;
    made.bucket = batch->bucket();
    made.bench = std::make_unique<Bench>(context.device, cases.size() % 2 == 0);
    Bench& bench = *made.bench;
    Arrays arrays{-1, -1, -1, -1, -1, -1};
    arrays.q = bench.add("q", desc.activation, tokens, width, Role::kInput, 64, [&](int64_t t, int64_t c) {
      if (cancelling) return sparse.q(t, c);
      // Flat, sharp and usual softmax. Flat: every key counts, those of the last pages of a long context too.
      return random.normal() * (t % 4 == 1 ? 0.01 : t % 4 == 2 ? 8 : 1);
    });
    add_cache(desc, *batch, cancelling ? &sparse : nullptr, random, bench, arrays);
    const int64_t page_stride = bench.view(arrays.k).stride;
    arrays.out = bench.add("out", desc.activation, tokens, width, Role::kOutput, 64);
    made.args.batch = batch->place(bench, steps.decode);
    made.args.q = bench.view(arrays.q);
    made.args.cache = {bench.view(arrays.k).data,
                       bench.view(arrays.v).data,
                       desc.cache,
                       kCasePageTokens,
                       desc.kv_heads,
                       desc.head_dim,
                       page_stride,
                       1,
                       1};
    made.args.out = bench.view(arrays.out);
    if (desc.output_gate) {  // gates lie between other columns, as in a fused projection
      arrays.gate = bench.add("gate", desc.activation, tokens, 2 * width, Role::kInput, 64, [&](int64_t, int64_t c) {
        return c / desc.head_dim % 2 == 0 ? 2 * random.normal() : 1e30;
      });
      made.args.gate = bench.view(arrays.gate);
      made.args.gate_stride = 2 * int64_t{desc.head_dim};
    }
    if (cases.size() % 2 == 1) {
      arrays.lse = bench.add("lse", DType::kF32, tokens, desc.heads, Role::kOutput, 0);
      made.args.lse = bench.view(arrays.lse);
    }
    auto expected = std::make_shared<Expected>();
    const Definition definition(desc, bench, arrays, *batch, page_stride, cancelling ? 3 : desc.head_dim);
    // Every so many pairs of token and head as the work allows, and of every sequence at least the last token with one
    // head. The step is odd: all heads come in turn.
    const int64_t pairs = int64_t{tokens} * desc.heads;
    const int64_t budget = context.effort == Effort::kFull ? 16 * kCheckWork : kCheckWork;
    const int64_t step = std::max({int64_t{1}, 2 * made.work / budget, pairs / 48}) | 1;
    for (int64_t pair = pairs - 1; pair >= 0; --pair) {
      const int64_t token = pair / desc.heads;
      const int32_t sequence = batch->sequence_of[static_cast<size_t>(token)];
      const bool last = token + 1 == batch->query_start[static_cast<size_t>(sequence) + 1];
      if ((pairs - 1 - pair) % step != 0 && !(last && pair % desc.heads == sequence % desc.heads)) continue;
      definition.compute({token, static_cast<int32_t>(pair % desc.heads)}, *expected);
    }
    const Evidence kind = cancelling ? Evidence::kAccumulator : Evidence::kSampled;
    made.judge = [&bench, desc, arrays, expected, kind, decode = steps.decode](Comparison& comparison) {
      for (size_t i = 0; i < expected->checked.size(); ++i) {
        const Checked& which = expected->checked[i];
        const bool rounded = comparison.order() == kAttentionTilesOrder && which.token >= decode;
        const auto accumulated = [&](const Element& e) { return e.accumulated + (rounded ? e.weights : 0); };
        Block block;
        for (int32_t d = 0; d < desc.head_dim; ++d) {
          const Element& e = expected->out[i][static_cast<size_t>(d)];
          const int64_t col = int64_t{which.head} * desc.head_dim + d;
          const double rounding = ulp(desc.activation, std::abs(e.value) + accumulated(e));
          const double got = bench.at(arrays.out, which.token, col);
          comparison.within(kind, "out", which.token, col, got, e.value, accumulated(e) + rounding);
          block.add(got, e.value, accumulated(e), rounding);
        }
        block.judge(comparison, "out", which.token, int64_t{which.head} * desc.head_dim);
        if (arrays.lse < 0) continue;
        const Element& lse = expected->lse[i];
        comparison.within(Evidence::kSampled, "lse", which.token, which.head,
                          bench.at(arrays.lse, which.token, which.head), lse.value,
                          accumulated(lse) + ulp(DType::kF32, lse.value));
      }
    };
    cases.push_back(std::move(made));
  }
  return cases;
}

}  // namespace assay::ops

#include "gpu/gpu_harness.h"
#include "ops/all_ops.h"

namespace assay::gpu_test {
namespace {

using numeric::WeightFormat;
using testing::random_matrix;
using testing::SequenceStep;
using testing::TestBatch;
using testing::TestCache;
using testing::TestState;
using testing::ulp;

constexpr int64_t kAlignedPad = 8;
constexpr int32_t kPages = 80;
constexpr double kWrong = std::numeric_limits<double>::infinity();

struct QkData {
  TestBatch batch;
  TestCache cache;
  Tensor qkv, q_out;
  QkNormRopeOp::Args args(Memory& memory) {
    return {memory.batch(batch), memory.in(qkv), memory.out(q_out), memory.cache(cache, kPages)};
  }
  std::vector<Tensor*> outputs() { return {&q_out}; }
};

// Every element of the cache, touched or not.
double cache_ratio(const QkNormRopeDesc& desc, TestCache& wanted, TestCache& got) {
  const int64_t elements = wanted.view().page_stride * kPages;
  double worst = 0;
  for (int64_t i = 0; i < elements; ++i) {
    const double a = wanted.k(i), b = got.k(i);
    if (std::isnan(a) != std::isnan(b)) return kWrong;
    // A rotated key is a difference of two products: its parts are at most about 8 in these cases.
    if (!std::isnan(a)) worst = std::max(worst, std::abs(a - b) / (ulp(desc.cache, a) + 0x1p-18));
    const double v = wanted.v(i), w = got.v(i);
    if (!(v == w || (std::isnan(v) && std::isnan(w)))) return kWrong;
  }
  return worst;
}

void check_qk_norm_rope(Suite& suite) {
  Random random(11);
  for (const auto& [heads, kv_heads, dim, rotary] : {std::tuple{16, 2, 256, 64}, {4, 2, 256, 64}, {6, 3, 48, 24}}) {
    const DType cache_type = dim == 48 ? DType::kF32 : DType::kBf16;
    const QkNormRopeDesc desc{heads, kv_heads, dim, rotary, 1e7, 1e-6f, dim != 48, DType::kBf16, cache_type};
    TestWeights& store = suite.cpu().weights();
    const QkNormRopeOp::Weights weights{store.add(random_matrix(random, WeightFormat::kBf16, 1, dim)),
                                        store.add(random_matrix(random, WeightFormat::kBf16, 1, dim))};
    TestCache cache(random, cache_type, kPages, 16, kv_heads, dim);
    const TestBatch batch({{100, 1, cache.pages_for(101)},
                           {0, 1, cache.pages_for(1)},
                           {31, 20, cache.pages_for(51)},
                           {700, 3, cache.pages_for(703)}});
    const int64_t width = heads * dim * (desc.output_gate ? 2 : 1) + 2 * kv_heads * dim;
    QkData data{batch, cache, Tensor(DType::kBf16, batch.tokens(), width),
                Tensor(DType::kBf16, batch.tokens(), heads * dim)};
    data.qkv.fill_normal(random);
    if (heads == 4) data.qkv.set(5, width - 1, std::nanf(""));  // the last value head
    suite.check<QkNormRopeOp>(fmt::format("{}/{}x{}", heads, kv_heads, dim), desc, batch.bucket(), weights, data, 2,
                              [&](const QkData& a, const QkData& b, std::string_view) {
                                TestCache wanted = a.cache, got = b.cache;
                                const double q = worst_ratio(a.q_out, b.q_out, [&](int64_t t, int64_t i) {
                                  return ulp(DType::kBf16, a.q_out.at(t, i)) + 0x1p-18;
                                });
                                return std::max(q, cache_ratio(desc, wanted, got));
                              });
  }
}

struct AttentionData {
  TestBatch batch;
  TestCache cache;
  Tensor q, gate, out, lse;
  int64_t gate_stride = 0;
  AttentionOp::Args args(Memory& memory) {
    AttentionOp::Args args;
    args.batch = memory.batch(batch);
    args.q = memory.in(q);
    if (gate_stride > 0) args.gate = memory.in(gate);
    args.gate_stride = gate_stride;
    args.cache = memory.cache(cache, kPages);
    args.out = memory.out(out);
    args.lse = memory.out(lse);
    return args;
  }
  std::vector<Tensor*> outputs() { return {&out, &lse}; }
};

AttentionData attention_data(Random& random, const AttentionDesc& desc, const TestBatch& batch,
                             const TestCache& cache) {
  const int64_t tokens = batch.tokens(), dim = desc.head_dim;
  AttentionData data{batch,
                     cache,
                     Tensor(DType::kBf16, tokens, desc.heads * dim, kAlignedPad),
                     Tensor(DType::kBf16, tokens, desc.heads * dim * 2),
                     Tensor(DType::kBf16, tokens, desc.heads * dim),
                     Tensor(DType::kF32, tokens, desc.heads),
                     desc.output_gate ? 2 * dim : 0};
  data.q.fill([&](int64_t t, int64_t) { return (t % 3 == 0 ? 4.0f : 1.0f) * random.normal(); });
  data.gate.fill_normal(random, 2.0f);
  return data;
}

void fill_cache(Random& random, TestCache& cache, const std::vector<SequenceStep>& steps) {
  const KvCacheView view = cache.view();
  for (const SequenceStep& step : steps) {
    for (int32_t p = 0; p < step.position + step.tokens; ++p) {
      for (int64_t h = 0; h < view.kv_heads; ++h) {
        const int64_t at = view.offset(step.pages[static_cast<size_t>(p / view.page_tokens)], h, p % view.page_tokens);
        for (int64_t d = 0; d < view.head_dim; ++d) cache.set(at + d, random.normal(), random.normal());
      }
    }
  }
}

// The part of `whole` from token `first` on that is one sequence, or a piece of it.
AttentionData attention_part(Random& random, const AttentionDesc& desc, const AttentionData& whole, int64_t first,
                             const SequenceStep& step, int32_t decode) {
  AttentionData part = attention_data(random, desc, TestBatch({step}, decode), whole.cache);
  part.q.fill([&](int64_t t, int64_t i) { return static_cast<float>(whole.q.at(first + t, i)); });
  part.gate.fill([&](int64_t t, int64_t i) { return static_cast<float>(whole.gate.at(first + t, i)); });
  return part;
}

// Sequences of the first `decode` steps have one token each.
void check_attention_steps(Suite& suite, Random& random, const AttentionDesc& desc, std::vector<SequenceStep> steps,
                           int32_t decode) {
  TestCache cache(random, DType::kBf16, kPages, 64, desc.kv_heads, desc.head_dim);
  for (SequenceStep& step : steps) step.pages = cache.pages_for(step.position + step.tokens);
  fill_cache(random, cache, steps);
  const AttentionData data = attention_data(random, desc, TestBatch(steps, decode), cache);
  const std::string name = fmt::format("{}/{}x{} T={}", desc.heads, desc.kv_heads, desc.head_dim, data.batch.tokens());
  // q.k: |q| |k| <= (4 * 21)^2 or so; with scores off by e, weights are off by a factor exp(2 e) at most.
  const double score_error = mma_error_bound(desc.head_dim, 4.0 * desc.head_dim * desc.scale * 2.0) + 0x1p-20;
  const double slack = std::expm1(2 * score_error) + 200 * 0x1p-24;
  suite.check<AttentionOp>(name, desc, data.batch.bucket(), {}, data, decode,
                           [&](const AttentionData& a, const AttentionData& b, std::string_view row) {
                             // Weights in bf16; |v| <= 6, so sum p |v - o| <= 6.
                             const auto weights = [&](int64_t t) {
                               return row == "cuda_prefill" && t >= decode ? 0x1p-8 : 0.0;
                             };
                             const double out = worst_ratio(a.out, b.out, [&](int64_t t, int64_t i) {
                               return ulp(DType::kBf16, a.out.at(t, i)) + (slack + weights(t)) * 6.0;
                             });
                             const double lse = worst_ratio(a.lse, b.lse, [&](int64_t t, int64_t h) {
                               return score_error + weights(t) + 0x1p-20 * (1 + std::abs(a.lse.at(t, h)));
                             });
                             return std::max(out, lse);
                           });
  // Every sequence alone, and those that hold a multiple of 64 also cut there.
  std::vector<AttentionData> parts;
  std::vector<int64_t> firsts;
  int64_t first = 0;
  for (size_t s = 0; s < steps.size(); ++s) {
    const SequenceStep& step = steps[s];
    const int32_t cut = (step.position / 64 + 1) * 64 - step.position;
    parts.push_back(attention_part(random, desc, data, first, step, s < static_cast<size_t>(decode) ? 1 : 0));
    firsts.push_back(first);
    if (cut < step.tokens) {
      const SequenceStep rest{step.position + cut, step.tokens - cut, step.pages};
      parts.push_back(attention_part(random, desc, data, first + cut, rest, 0));
      firsts.push_back(first + cut);
    }
    first += step.tokens;
  }
  suite.check_invariant<AttentionOp>(name + " in parts", desc, data.batch.bucket(), {}, data, parts, firsts);
}

void check_attention(Suite& suite) {
  Random random(12);
  for (const auto& [heads, kv_heads, dim] : {std::tuple{16, 2, 256}, {4, 2, 256}, {32, 2, 256}, {6, 2, 64}}) {
    const AttentionDesc desc{heads,      kv_heads,     dim,         1.0f / std::sqrt(static_cast<float>(dim)),
                             dim == 256, DType::kBf16, DType::kBf16};
    check_attention_steps(suite, random, desc, {{4200, 1}, {0, 1}, {63, 1}, {64, 1}, {15, 1}, {100, 4}}, 5);
    check_attention_steps(suite, random, desc, {{300, 1}, {63, 1}, {0, 130}, {64, 70}, {100, 37}, {0, 1}, {448, 17}},
                          2);
  }
  std::vector<SequenceStep> many{{70, 1}};
  for (int32_t s = 0; s < 70; ++s) many.push_back({s % 5, 1 + s % 4});
  const AttentionDesc grouped_by_six{12, 2, 256, 0.0625f, true, DType::kBf16, DType::kBf16};
  check_attention_steps(suite, random, grouped_by_six, many, 1);
}

struct ConvData {
  TestBatch batch;
  TestState state;
  Tensor qkv, a, b, q, k, v, g, beta;
  ConvGatesOp::Args args(Memory& memory) {
    return {memory.batch(batch), memory.in(qkv), memory.in(a),  memory.in(b),  memory.state(state),
            memory.out(q),       memory.out(k),  memory.out(v), memory.out(g), memory.out(beta)};
  }
  std::vector<Tensor*> outputs() { return {&q, &k, &v, &g, &beta}; }
};

void check_conv_gates(Suite& suite) {
  Random random(13);
  for (const auto& [keys, values, dim, width] : {std::tuple{16, 32, 128, 4}, {2, 4, 128, 4}, {1, 3, 40, 3}}) {
    const ConvGatesDesc desc{keys, values, dim, dim, width, DType::kBf16};
    const int64_t channels = desc.channels();
    TestWeights& store = suite.cpu().weights();
    const ConvGatesOp::Weights weights{store.add(random_matrix(random, WeightFormat::kBf16, channels, width, 0.5f)),
                                       store.add(random_matrix(random, WeightFormat::kF32, 1, values, 1.0f)),
                                       store.add(random_matrix(random, WeightFormat::kBf16, 1, values, 1.0f))};
    const TestBatch batch(
        {{9, 1, {}, 0, 4}, {0, 1, {}, -1, 5}, {3, 2, {}, 1, 6}, {0, 9, {}, -1, 7}, {64, 7, {}, 2, 3}});
    const int64_t tokens = batch.tokens();
    const auto make = [&](DType dtype, int64_t cols) { return Tensor(dtype, tokens, cols); };
    ConvData data{batch,
                  TestState(DType::kBf16, 8, channels * (width - 1), 4),
                  make(DType::kBf16, channels),
                  make(DType::kBf16, values),
                  make(DType::kBf16, values),
                  make(DType::kF32, keys * dim),
                  make(DType::kF32, keys * dim),
                  make(DType::kBf16, values * dim),
                  make(DType::kF32, values),
                  make(DType::kF32, values)};
    for (int64_t slot : {0, 1, 2}) {
      for (int64_t i = 0; i < channels * (width - 1); ++i) data.state.conv.set(slot, i, random.normal());
    }
    data.qkv.fill_normal(random);
    if (keys == 2) data.qkv.set(12, channels - 1, std::nanf(""));  // among the inputs that are left in the state
    data.a.fill([&](int64_t t, int64_t) { return (t == 0 ? 30.0f : 1.0f) * random.normal(); });
    data.b.fill_normal(random, 2.0f);
    suite.check<ConvGatesOp>(
        fmt::format("{}/{}x{}", keys, values, dim), desc, batch.bucket(), weights, data, 2,
        [&](const ConvData& x, const ConvData& y, std::string_view) {
          if (!y.state.conv.guards_intact()) return kWrong;
          // Inputs, moved: exact. Slots that nothing writes stay poisoned.
          double worst = worst_ratio(x.state.conv, y.state.conv, [](int64_t, int64_t) { return 1e-30; });
          // The convolution may round the other way: 2^-8 of the element and of the norm.
          const auto turned = [](const Tensor& from) {
            return [&from](int64_t t, int64_t i) { return 0x1p-7 * std::abs(from.at(t, i)) + 1e-9; };
          };
          const auto close = [](const Tensor& from) {
            return [&from](int64_t t, int64_t i) { return 0x1p-19 * std::abs(from.at(t, i)) + 1e-12; };
          };
          worst = std::max(worst, std::max(worst_ratio(x.q, y.q, turned(x.q)), worst_ratio(x.k, y.k, turned(x.k))));
          worst = std::max(worst, worst_ratio(x.v, y.v, [&](int64_t t, int64_t i) {
                             return ulp(DType::kBf16, x.v.at(t, i)) + 1e-6;
                           }));
          worst = std::max(worst, worst_ratio(x.g, y.g, close(x.g)));
          return std::max(worst, worst_ratio(x.beta, y.beta, close(x.beta)));
        });
  }
}

struct DeltaData {
  TestBatch batch;
  TestState state;
  Tensor q, k, v, g, beta, out;
  GatedDeltaOp::Args args(Memory& memory) {
    return {memory.batch(batch), memory.in(q),    memory.in(k),        memory.in(v),
            memory.in(g),        memory.in(beta), memory.state(state), memory.out(out)};
  }
  std::vector<Tensor*> outputs() { return {&out}; }
};

// Rows of q and k are 16-byte aligned where there are 16 key heads.
DeltaData delta_data(Random& random, const GatedDeltaDesc& desc, const TestBatch& batch) {
  const int64_t pad = desc.key_heads == 16 ? kAlignedPad : 3;
  const int64_t tokens = batch.tokens(), key = desc.key_heads * desc.key_dim, value = desc.value_heads * desc.value_dim;
  DeltaData data{batch,
                 TestState(DType::kBf16, 8, 4, int64_t{desc.value_heads} * desc.key_dim * desc.value_dim),
                 Tensor(DType::kF32, tokens, key, pad),
                 Tensor(DType::kF32, tokens, key, pad),
                 Tensor(DType::kBf16, tokens, value),
                 Tensor(DType::kF32, tokens, desc.value_heads),
                 Tensor(DType::kF32, tokens, desc.value_heads),
                 Tensor(DType::kBf16, tokens, value)};
  const float unit = 1.0f / std::sqrt(static_cast<float>(desc.key_dim));
  data.k.fill_normal(random, unit);  // length about 1
  data.q.fill_normal(random, unit * unit);
  data.v.fill_normal(random);
  data.g.fill([&](int64_t, int64_t) { return -random.uniform(0.0f, 2.0f); });
  data.beta.fill([&](int64_t, int64_t) { return random.uniform(0.0f, 1.0f); });
  for (int64_t slot : {0, 1, 2}) {
    for (int64_t i = 0; i < data.state.delta.cols(); ++i) data.state.delta.set(slot, i, 0.3f * random.normal());
  }
  if (desc.key_heads == 2) data.state.delta.set(1, 5, std::nanf(""));
  return data;
}

// Normwise: |S| <= 8 element by element here, and each token adds at most one rounding of sums over key_dim to it.
double delta_ratio(const GatedDeltaDesc& desc, const DeltaData& wanted, const DeltaData& got, int64_t most_tokens) {
  const double step = (static_cast<double>(desc.key_dim) / 8 + 16) * 0x1p-24 * 8;
  const double state_bound = step * static_cast<double>(most_tokens);
  const double state = worst_ratio(wanted.state.delta, got.state.delta, [&](int64_t, int64_t) { return state_bound; });
  return std::max(state, worst_ratio(wanted.out, got.out, [&](int64_t t, int64_t i) {
                    return ulp(DType::kBf16, wanted.out.at(t, i)) + state_bound;  // |q| <= 1/sqrt(key_dim)
                  }));
}

void check_gated_delta(Suite& suite) {
  Random random(14);
  for (const auto& [keys, values, dim] : {std::tuple{16, 32, 128}, {2, 4, 128}, {1, 2, 24}}) {
    const GatedDeltaDesc desc{keys, values, dim, dim, DType::kBf16};
    const TestBatch one({{9, 1, {}, 0, 4}, {0, 1, {}, -1, 5}, {3, 1, {}, 1, 6}, {2, 1, {}, 2, 3}}, 4);
    const TestBatch many({{9, 1, {}, 0, 4}, {0, 30, {}, -1, 5}, {3, 2, {}, 1, 6}, {64, 70, {}, 2, 3}}, 1);
    const TestBatch chunks({{9, 1, {}, 0, 4}, {0, 200, {}, -1, 5}, {37, 100, {}, 2, 3}}, 1);
    for (const TestBatch* batch : {&one, &many, &chunks}) {
      const DeltaData data = delta_data(random, desc, *batch);
      suite.check<GatedDeltaOp>(fmt::format("{}/{}x{} T={}", keys, values, dim, batch->tokens()), desc, batch->bucket(),
                                {}, data, batch == &one ? 4 : 1,
                                [&](const DeltaData& a, const DeltaData& b, std::string_view) {
                                  return delta_ratio(desc, a, b, batch == &one ? 1 : batch == &many ? 70 : 200);
                                });
    }
    // One sequence alone: its outputs and its state are those of the batch.
    const DeltaData whole = delta_data(random, desc, many);
    DeltaData part = delta_data(random, desc, TestBatch({{64, 70, {}, 2, 3}}));
    const auto copy = [&](Tensor& to, const Tensor& from) {
      to.fill([&](int64_t t, int64_t i) { return static_cast<float>(from.at(33 + t, i)); });
    };
    copy(part.q, whole.q), copy(part.k, whole.k), copy(part.v, whole.v), copy(part.g, whole.g);
    copy(part.beta, whole.beta);
    part.state = whole.state;
    suite.check_invariant<GatedDeltaOp>(fmt::format("{}/{}x{} in parts", keys, values, dim), desc, many.bucket(), {},
                                        whole, {part}, {33});
  }
}

struct SampleData {
  Tensor logits;
  std::vector<SampleParams> params;
  std::vector<SampleResult> results;
  std::vector<LogitAdjustment> adjustments = {};
  SampleOp::Args args(Memory& memory) {
    const std::vector<SampleParams>& read = params;
    SampleOp::Args args;
    args.rows = static_cast<int32_t>(params.size());
    args.logits = memory.in(logits);
    args.params = memory.map(read.data(), read.size() * sizeof(SampleParams));
    const std::vector<LogitAdjustment>& changes = adjustments;
    args.adjustments = memory.map(changes.data(), changes.size() * sizeof(LogitAdjustment));
    args.results = memory.map(results.data(), results.size() * sizeof(SampleResult));
    return args;
  }
  std::vector<Tensor*> outputs() { return {}; }
};

double sample_ratio(const SampleData& wanted, const SampleData& got) {
  double worst = 0;
  for (size_t r = 0; r < wanted.results.size(); ++r) {
    const SampleResult &a = wanted.results[r], &b = got.results[r];
    if (a.token != b.token || a.numerical_error != b.numerical_error || a.top_count != b.top_count) return kWrong;
    const auto off = [&](float x, float y) {
      if (x != y) worst = std::max(worst, std::abs(double{x} - y) / (0x1p-20 * (1 + std::abs(x))));
    };
    off(a.logprob, b.logprob);
    for (int32_t i = 0; i < a.top_count; ++i) {
      if (a.top_ids[i] != b.top_ids[i]) return kWrong;
      off(a.top_logprobs[i], b.top_logprobs[i]);
    }
  }
  return worst;
}

// Parameters of every kind over random logits; rows 5 to 8 have ties, a NaN, an infinity and no finite logit; 13, 17
// and 19 give no column much more than any other: all tied, nearly tied, and tied in three groups.
SampleData sample_data(Random& random, const SampleDesc& desc) {
  constexpr int64_t kRows = 48;
  SampleData data{Tensor(DType::kF32, kRows, desc.vocab), std::vector<SampleParams>(kRows),
                  std::vector<SampleResult>(kRows)};
  data.logits.fill([&](int64_t r, int64_t i) {
    if (r == 5) return static_cast<float>(random.below(4));
    if (r == 6 && i == desc.real_vocab / 2) return std::nanf("");
    if (r == 7 && i == 3) return std::numeric_limits<float>::infinity();
    if (r == 8) return -std::numeric_limits<float>::infinity();
    if (r == 13) return 1.5f;
    if (r == 17) return 0.01f * random.normal();
    if (r == 19) return 1.0f + static_cast<float>(i % 3) * 0x1p-23f;
    return 4.0f * random.normal();
  });
  for (size_t r = 0; r < kRows; ++r) {
    SampleParams& params = data.params[r];
    params.temperature = r % 4 == 0 ? 0.0f : 0.3f * static_cast<float>(r % 7);
    params.top_k = r % 3 == 0 ? static_cast<int32_t>(r) : 0;
    params.top_p = r % 5 == 0 ? 0.8f : 1.0f;
    params.min_p = r % 6 == 1 ? 0.05f : 0.0f;
    params.seed = 77 + r;
    params.counter = r * 13;
    params.top_logprobs = static_cast<int32_t>(r % 8 == 2 ? 20 : r % 3);
    if (r >= 20 && r % 2 == 0) {  // penalties and bans, also of a padding row
      params.first_adjustment = static_cast<int32_t>(data.adjustments.size());
      params.adjustment_count = static_cast<int32_t>(r % 6 + 1);
      for (int32_t i = 0; i < params.adjustment_count; ++i) {
        const int32_t token = (static_cast<int32_t>(r) * 37 + i) % desc.vocab;
        if (i > 0 && desc.vocab < 10) {
          params.adjustment_count = i;
          break;
        }
        data.adjustments.push_back(
            {token, random.uniform(0.5f, 2.0f), i == 1 ? -kBannedLogit : 5.0f * random.normal()});
      }
    }
    params.target = r == 11 ? 1 : r == 12 ? desc.vocab - 1 : -1;
  }
  return data;
}

// Fast rows draw by rounded weights: the token must be the very one that the CPU's draws.
void check_sample(Suite& suite) {
  Random random(15);
  for (const auto& [vocab, real] : {std::pair{3072, 3050}, {1000, 1000}, {5, 3}, {150016, 150000}}) {
    const SampleDesc desc{vocab, real};
    const Bucket bucket{48, 48};
    const SampleData data = sample_data(random, desc);
    SampleData rounded = data;
    if (suite.wants<SampleOp>()) {
      Memory host(nullptr);
      suite.cpu().prepare<SampleOp>("cpu_portable", desc, bucket, {}).run(rounded.args(host));
    }
    suite.check<SampleOp>(fmt::format("{} of {}", real, vocab), desc, bucket, {}, data, 48,
                          [&](const SampleData& a, const SampleData& b, std::string_view row) {
                            return sample_ratio(row == "cuda_reference" ? a : rounded, b);
                          });
  }
}

}  // namespace

void check_sequence_ops(Suite& suite) {
  check_qk_norm_rope(suite);
  check_attention(suite);
  check_conv_gates(suite);
  check_gated_delta(suite);
  check_sample(suite);
}

}  // namespace assay::gpu_test

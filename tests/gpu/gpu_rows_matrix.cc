#include "gpu/gpu_harness.h"
#include "ops/all_ops.h"

namespace assay::gpu_test {
namespace {

using numeric::WeightFormat;
using testing::decoded;
using testing::random_matrix;
using testing::ulp;

constexpr int64_t kAlignedPad = 8;  // guard columns that keep bf16 rows 16-byte aligned

struct EmbedData {
  Tensor ids, y;
  EmbedOp::Args args(Memory& memory) {
    return {{0, static_cast<int32_t>(ids.rows()), nullptr}, memory.in(ids), memory.out(y)};
  }
  std::vector<Tensor*> outputs() { return {&y}; }
};

void check_embed(Suite& suite) {
  Random random(1);
  for (WeightFormat format : {WeightFormat::kBf16, WeightFormat::kF32, WeightFormat::kF16, WeightFormat::kNvfp4}) {
    for (DType activation : {DType::kBf16, DType::kF32}) {
      const EmbedDesc desc{300, 272, format, activation};
      const WeightId id = suite.cpu().weights().add(random_matrix(random, format, 300, 272));
      EmbedData data{Tensor(DType::kI32, 9, 1), Tensor(activation, 9, 272)};
      data.ids.fill([&](int64_t, int64_t) { return static_cast<float>(random.below(300)); });
      suite.check<EmbedOp>(std::string(weight_format_name(format)), desc, {9, 9}, {id}, data, 9,
                           [](const EmbedData& a, const EmbedData& b, std::string_view) {
                             return a.y == b.y ? 0.0 : std::numeric_limits<double>::infinity();
                           });
    }
  }
}

struct NormData {
  Tensor x, z, y;
  std::vector<int32_t> gather;
  RmsNormOp::Args args(Memory& memory) {
    RmsNormOp::Args args{{0, static_cast<int32_t>(y.rows()), nullptr}, memory.in(x), memory.in(z), memory.out(y)};
    const std::vector<int32_t>& rows = gather;
    if (!rows.empty()) args.gather = memory.map(rows.data(), rows.size() * 4);
    return args;
  }
  std::vector<Tensor*> outputs() { return {&y}; }
};

void check_rms_norm(Suite& suite) {
  Random random(2);
  for (const auto& [width, groups] :
       {std::pair<int64_t, int64_t>{2048, 1}, {4104, 1}, {256, 1}, {128, 32}, {1000, 2}, {7, 3}}) {
    for (NormKind kind : {NormKind::kZeroCentred, NormKind::kGated}) {
      for (bool sigmoid : {false, true}) {
        if (sigmoid && kind == NormKind::kZeroCentred) continue;
        const DType activation = width == 7 ? DType::kF32 : DType::kBf16;
        const RmsNormDesc desc{kind, width, groups, 1e-6f, sigmoid, activation};
        const WeightId id = suite.cpu().weights().add(random_matrix(random, WeightFormat::kBf16, 1, width));
        NormData data{Tensor(activation, 11, width * groups),
                      Tensor(activation, 11, width * groups),
                      Tensor(activation, 11, width * groups),
                      {}};
        data.x.fill([&](int64_t t, int64_t i) {
          const float scale = t == 0 ? 1e-20f : t == 1 ? 1e15f : t == 2 ? (i % 97 == 0 ? 300.0f : 0.01f) : 1.0f;
          return t == 3 ? 0.0f : scale * random.normal();
        });
        if (width == 1000) data.x.set(4, 700, std::numeric_limits<float>::infinity());
        data.z.fill_normal(random, 3.0f);
        if (width == 256) data.gather = {5, 5, 0, 10, 2, 3, 9, 1, 1, 7, 8};
        const double slack = (static_cast<double>(width) / 2 + 16) * 0x1p-24 + 0x1p-20;
        suite.check<RmsNormOp>(fmt::format("{}x{}", width, groups), desc, {11, 11}, {id}, data, 11,
                               [&](const NormData& a, const NormData& b, std::string_view) {
                                 return worst_ratio(a.y, b.y, [&](int64_t row, int64_t col) {
                                   return ulp(activation, a.y.at(row, col)) + slack * std::abs(a.y.at(row, col));
                                 });
                               });
      }
    }
  }
}

struct LinearData {
  Tensor x, residual, y;
  bool add = false;
  int32_t decode = 0;
  LinearOp::Args args(Memory& memory) {
    LinearOp::Args args{{decode, static_cast<int32_t>(x.rows()), nullptr}, memory.in(x), {}, memory.out(y)};
    if (add) args.residual = memory.in(residual);
    return args;
  }
  std::vector<Tensor*> outputs() { return {&y}; }
};

LinearData linear_data(Random& random, const LinearDesc& desc, int64_t tokens, int64_t pad) {
  LinearData data{Tensor(desc.activation, tokens, desc.k, pad), Tensor(desc.output, tokens, desc.n, pad),
                  Tensor(desc.output, tokens, desc.n, pad), tokens % 2 == 1,
                  static_cast<int32_t>(tokens > 20 ? tokens / 3 : tokens)};
  data.x.fill([&](int64_t t, int64_t k) {
    if (t == 1) return k % 2 == 0 ? 1e4f : -1e4f;
    if (t == 2) return k % 37 == 0 ? 1e10f : 1e-10f;
    return random.normal();
  });
  data.residual.fill_normal(random);
  return data;
}

double linear_ratio(const LinearDesc& desc, const WeightSource& source, const LinearData& wanted,
                    const LinearData& got) {
  std::vector<double> weights;
  for (const auto& matrix : source.matrices) {
    const auto part = decoded(matrix);
    weights.insert(weights.end(), part.begin(), part.end());
  }
  return worst_ratio(wanted.y, got.y, [&](int64_t t, int64_t n) {
    double magnitudes = 0;
    for (int64_t k = 0; k < desc.k; ++k) {
      magnitudes += std::abs(wanted.x.at(t, k) * weights[static_cast<size_t>(n * desc.k + k)]);
    }
    const double y = wanted.y.at(t, n), sum = wanted.add ? y - wanted.residual.at(t, n) : y;
    return mma_error_bound(desc.k, magnitudes) + ulp(desc.output, y) + (wanted.add ? ulp(desc.output, sum) : 0.0);
  });
}

void check_linear(Suite& suite) {
  struct Shape {
    int64_t k;
    std::vector<int64_t> shards;
    int64_t tokens, pad;
  };
  const Shape shapes[] = {{2048, {128}, 1, kAlignedPad},
                          {256, {48, 16, 7}, 5, kAlignedPad},
                          {4096, {32}, 9, 3},
                          {528, {256, 40}, 33, kAlignedPad},
                          {1024, {129}, 130, 3},
                          {16, {1}, 2, kAlignedPad},
                          {2048, {256}, 300, kAlignedPad},
                          {128, {16}, 17, kAlignedPad},
                          {512, {200, 64}, 600, kAlignedPad}};
  Random random(3);
  for (WeightFormat format : {WeightFormat::kBf16, WeightFormat::kNvfp4, WeightFormat::kF32}) {
    for (const Shape& shape : shapes) {
      const bool f32 = format == WeightFormat::kF32;
      if (f32 && shape.tokens > 9) continue;
      std::vector<testing::OwnedMatrix> matrices;
      int64_t n = 0;
      for (int64_t rows : shape.shards) {
        matrices.push_back(random_matrix(random, format, rows, shape.k));
        n += rows;
        if (format == WeightFormat::kNvfp4 && rows == 40) {  // negative block scales
          for (size_t i = 0; i < 64; ++i) matrices.back().scale_bytes()[i] |= std::byte{0x80};
        }
      }
      const WeightId id = suite.cpu().weights().add(std::move(matrices));
      const DType output = shape.tokens == 5 || f32 ? DType::kF32 : DType::kBf16;
      const LinearDesc desc{n, shape.k, format, weight_only_lane(format), f32 ? DType::kF32 : DType::kBf16, output};
      const LinearData data = linear_data(random, desc, shape.tokens, shape.pad);
      const auto tokens = static_cast<int32_t>(shape.tokens);
      suite.check<LinearOp>(fmt::format("{} {}x{} T={}", weight_format_name(format), n, shape.k, shape.tokens), desc,
                            {tokens, tokens}, {id}, data, data.decode,
                            [&](const LinearData& a, const LinearData& b, std::string_view) {
                              return linear_ratio(desc, suite.cpu().weights().source(id), a, b);
                            });
    }
  }
}

// Tokens [first, first + count) as a batch of their own, with the phases they have in the whole.
LinearData linear_part(const LinearDesc& desc, const LinearData& whole, int64_t first, int64_t count) {
  LinearData part{Tensor(desc.activation, count, desc.k, kAlignedPad), Tensor(desc.output, count, desc.n, kAlignedPad),
                  Tensor(desc.output, count, desc.n, kAlignedPad), false,
                  static_cast<int32_t>(std::clamp<int64_t>(whole.decode - first, 0, count))};
  part.x.fill([&](int64_t t, int64_t k) { return static_cast<float>(whole.x.at(first + t, k)); });
  return part;
}

void check_linear_invariance(Suite& suite) {
  struct Whole {
    int64_t n, k;
    DType output;
    int32_t tokens, decode;
    std::vector<int64_t> firsts, counts;
  };
  const Whole wholes[] = {
      {80, 2048, DType::kF32, 70, 20, {0, 0, 7, 19, 20, 33, 12}, {1, 9, 3, 1, 50, 1, 20}},
      {1040, 1536, DType::kBf16, 700, 4, {0, 4, 4, 4, 100, 443, 699}, {4, 64, 512, 696, 129, 257, 1}},
  };
  Random random(4);
  for (WeightFormat format : {WeightFormat::kBf16, WeightFormat::kNvfp4}) {
    for (const Whole& shape : wholes) {
      const LinearDesc desc{shape.n, shape.k, format, weight_only_lane(format), DType::kBf16, shape.output};
      const WeightId id = suite.cpu().weights().add(random_matrix(random, format, shape.n, shape.k));
      LinearData whole = linear_data(random, desc, shape.tokens, kAlignedPad);
      whole.add = false;
      whole.decode = shape.decode;
      std::vector<LinearData> parts;
      for (size_t i = 0; i < shape.firsts.size(); ++i) {
        parts.push_back(linear_part(desc, whole, shape.firsts[i], shape.counts[i]));
      }
      suite.check_invariant<LinearOp>(fmt::format("{} {} tokens in parts", weight_format_name(format), shape.tokens),
                                      desc, {shape.tokens, shape.tokens}, {id}, whole, parts, shape.firsts);
    }
  }
}

struct SiluData {
  Tensor gate_up, y;
  SiluMulOp::Args args(Memory& memory) {
    return {{0, static_cast<int32_t>(y.rows()), nullptr}, memory.in(gate_up), memory.out(y)};
  }
  std::vector<Tensor*> outputs() { return {&y}; }
};

void check_silu_mul(Suite& suite) {
  Random random(5);
  for (DType activation : {DType::kBf16, DType::kF32}) {
    SiluData data{Tensor(activation, 6, 1026), Tensor(activation, 6, 513)};
    data.gate_up.fill([&](int64_t t, int64_t) { return (t == 0 ? 60.0f : t == 1 ? 1e-5f : 3.0f) * random.normal(); });
    suite.check<SiluMulOp>("513", {513, activation}, {6, 6}, {}, data, 6,
                           [&](const SiluData& a, const SiluData& b, std::string_view) {
                             return worst_ratio(a.y, b.y, [&](int64_t row, int64_t col) {
                               const double y = a.y.at(row, col);
                               return ulp(activation, y) + 0x1p-20 * std::abs(y) + 0x1p-126;
                             });
                           });
  }
}

struct RouterData {
  Tensor x, forced, ids, weights, shared_scale, logits;
  bool force = false;
  RouterOp::Args args(Memory& memory) {
    RouterOp::Args args;
    args.tokens = {0, static_cast<int32_t>(x.rows()), nullptr};
    args.x = memory.in(x);
    if (force) args.forced_ids = memory.in(forced);
    args.ids = memory.out(ids);
    args.weights = memory.out(weights);
    args.shared_scale = memory.out(shared_scale);
    args.logits = memory.out(logits);
    return args;
  }
  std::vector<Tensor*> outputs() { return {&ids, &weights, &shared_scale, &logits}; }
};

// The row's ids must be right for its own logits; then everything else against the reference forced to those ids.
double router_ratio(Suite& suite, const RouterDesc& desc, const RouterOp::Weights& weights, const RouterData& fresh,
                    const RouterData& got) {
  constexpr double kWrong = std::numeric_limits<double>::infinity();
  RouterData wanted = fresh;
  wanted.force = true;
  for (int64_t t = 0; t < got.x.rows(); ++t) {
    std::vector<bool> taken(static_cast<size_t>(desc.experts), false);
    for (int32_t i = 0; i < desc.top_k; ++i) {
      const auto id = static_cast<int64_t>(got.ids.at(t, i));
      if (id < 0 || id >= desc.experts || taken[static_cast<size_t>(id)]) return kWrong;
      wanted.forced.set(t, i, static_cast<float>(id));
      taken[static_cast<size_t>(id)] = true;
      for (int64_t e = 0; !fresh.force && e < desc.experts; ++e) {
        const double mine = got.logits.at(t, id), other = got.logits.at(t, e);
        if (!taken[static_cast<size_t>(e)] && (other > mine || (other == mine && e < id))) return kWrong;
      }
    }
  }
  Memory host(nullptr);
  suite.cpu()
      .prepare<RouterOp>("reference", desc, {static_cast<int32_t>(got.x.rows()), 1}, weights)
      .run(wanted.args(host));
  const std::vector<double> gate = decoded(suite.cpu().weights().source(weights.gate).matrices[0]);
  const auto logit_bound = [&](int64_t t, int64_t e) {
    double magnitudes = 0;
    for (int64_t k = 0; k < desc.hidden; ++k) {
      magnitudes += std::abs(wanted.x.at(t, k) * gate[static_cast<size_t>(e * desc.hidden + k)]);
    }
    return mma_error_bound(desc.hidden, magnitudes) + ulp(desc.activation, wanted.logits.at(t, e));
  };
  double worst = worst_ratio(wanted.logits, got.logits, logit_bound);
  // A weight moves with the logits it is made of: by at most the sum of their relative changes.
  worst = std::max(worst, worst_ratio(wanted.weights, got.weights, [&](int64_t t, int64_t i) {
                     double change = 0x1p-20;
                     for (int32_t j = 0; j < desc.top_k; ++j) {
                       const auto id = static_cast<int64_t>(got.ids.at(t, j));
                       change =
                           std::max(change, 2 * std::abs(got.logits.at(t, id) - wanted.logits.at(t, id)) + 0x1p-20);
                     }
                     return std::expm1(change) * wanted.weights.at(t, i);
                   }));
  // sigmoid's slope is s (1 - s) <= 1/4; its input may be one rounding apart.
  return std::max(worst, worst_ratio(wanted.shared_scale, got.shared_scale, [&](int64_t t, int64_t) {
                    const double s = wanted.shared_scale.at(t, 0), logit = std::log(s / (1 - s));
                    return s * (1 - s) * 1.1 * (ulp(desc.activation, logit) + 1e-3) + 0x1p-20 * s;
                  }));
}

void check_router(Suite& suite) {
  Random random(6);
  for (const auto& [experts, hidden, top_k] : {std::tuple{256, 2048, 8}, {16, 256, 4}, {40, 128, 1}, {301, 64, 11}}) {
    for (bool force : {false, true}) {
      const RouterDesc desc{hidden, experts, top_k, true, WeightFormat::kBf16, DType::kBf16};
      TestWeights& store = suite.cpu().weights();
      const RouterOp::Weights weights{store.add(random_matrix(random, WeightFormat::kBf16, experts, hidden, 0.02f)),
                                      store.add(random_matrix(random, WeightFormat::kBf16, 1, hidden, 0.02f))};
      RouterData data{Tensor(DType::kBf16, 21, hidden, kAlignedPad),
                      Tensor(DType::kI32, 21, top_k),
                      Tensor(DType::kI32, 21, top_k),
                      Tensor(DType::kF32, 21, top_k),
                      Tensor(DType::kF32, 21, 1),
                      Tensor(DType::kF32, 21, experts),
                      force};
      data.x.fill([&](int64_t t, int64_t) { return t == 0 ? 0.0f : random.normal(); });  // token 0: all tied
      data.forced.fill([&](int64_t t, int64_t i) { return static_cast<float>((t * 7 + i * 3) % experts); });
      suite.check<RouterOp>(fmt::format("{} of {}{}", top_k, experts, force ? " forced" : ""), desc, {21, 21}, weights,
                            data, 21, [&](const RouterData&, const RouterData& got, std::string_view) {
                              return router_ratio(suite, desc, weights, data, got);
                            });
    }
  }
}

struct ExpertsData {
  Tensor x, ids, weights, shared, shared_scale, residual, y;
  bool extras = true;
  ExpertsOp::Args args(Memory& memory) {
    ExpertsOp::Args args;
    args.tokens = {0, static_cast<int32_t>(x.rows()), nullptr};
    args.x = memory.in(x);
    args.ids = memory.in(ids);
    args.weights = memory.in(weights);
    if (extras) {
      args.shared = memory.in(shared);
      args.shared_scale = memory.in(shared_scale);
      args.residual = memory.in(residual);
    }
    args.y = memory.out(y);
    return args;
  }
  std::vector<Tensor*> outputs() { return {&y}; }
};

ExpertsData experts_data(Random& random, const ExpertsDesc& desc, int64_t tokens, bool extras) {
  const auto matrix = [&](DType dtype, int64_t cols) { return Tensor(dtype, tokens, cols, kAlignedPad); };
  ExpertsData data{matrix(DType::kBf16, desc.hidden),
                   matrix(DType::kI32, desc.top_k),
                   matrix(DType::kF32, desc.top_k),
                   matrix(DType::kBf16, desc.hidden),
                   matrix(DType::kF32, 1),
                   matrix(DType::kBf16, desc.hidden),
                   matrix(DType::kBf16, desc.hidden),
                   extras};
  data.x.fill_normal(random);
  data.shared.fill_normal(random);
  data.residual.fill_normal(random);
  data.weights.fill([&](int64_t, int64_t) { return random.uniform(0.01f, 0.5f); });
  data.shared_scale.fill([&](int64_t, int64_t) { return random.uniform(0.1f, 1.0f); });
  // Distinct experts in no order; a third of the tokens all on the same ones.
  data.ids.fill([&](int64_t t, int64_t i) {
    return static_cast<float>((t % 3 == 0 ? 5 + 7 * i : t * 11 + 5 * i) % desc.experts);
  });
  return data;
}

struct Dense {
  std::vector<double> values;
  int64_t cols = 0;
  const double* row(int64_t i) const { return values.data() + i * cols; }
};

// Error of one output: each h may be off by its own bound, which down spreads; then down's sum and the roundings.
double experts_ratio(const ExpertsDesc& desc, const WeightSource& source, const ExpertsData& wanted,
                     const ExpertsData& got) {
  std::vector<Dense> dense;
  for (const auto& matrix : source.matrices) dense.push_back({decoded(matrix), matrix.cols});
  Tensor bounds(DType::kF32, wanted.y.rows(), desc.hidden);
  for (int64_t t = 0; t < wanted.y.rows(); ++t) {
    std::vector<double> total(static_cast<size_t>(desc.hidden), 0.0);
    for (int32_t i = 0; i < desc.top_k; ++i) {
      const size_t first = 3 * static_cast<size_t>(wanted.ids.at(t, i));
      std::vector<double> h(static_cast<size_t>(desc.intermediate)), slack(h.size());
      for (int64_t r = 0; r < desc.intermediate; ++r) {
        double gate = 0, up = 0, gate_size = 0, up_size = 0;
        for (int64_t k = 0; k < desc.hidden; ++k) {
          const double x = wanted.x.at(t, k), g = x * dense[first].row(r)[k], u = x * dense[first + 1].row(r)[k];
          gate += g, up += u, gate_size += std::abs(g), up_size += std::abs(u);
        }
        const double silu = gate / (1 + std::exp(-gate));
        const double gate_error = mma_error_bound(desc.hidden, gate_size) + 0x1p-20 * std::abs(gate);
        h[static_cast<size_t>(r)] = silu * up;
        slack[static_cast<size_t>(r)] = 1.1 * gate_error * std::abs(up) +
                                        std::abs(silu) * mma_error_bound(desc.hidden, up_size) +
                                        ulp(DType::kBf16, silu * up);
      }
      for (int64_t n = 0; n < desc.hidden; ++n) {
        double spread = 0, size = 0;
        for (int64_t r = 0; r < desc.intermediate; ++r) {
          const double w = std::abs(dense[first + 2].row(n)[r]);
          spread += w * slack[static_cast<size_t>(r)];
          size += w * std::abs(h[static_cast<size_t>(r)]);
        }
        total[static_cast<size_t>(n)] +=
            wanted.weights.at(t, i) * (spread + mma_error_bound(desc.intermediate, size) + desc.top_k * 0x1p-23 * size);
      }
    }
    for (int64_t n = 0; n < desc.hidden; ++n) {
      const double y = wanted.y.at(t, n), sum = wanted.extras ? y - wanted.residual.at(t, n) : y;
      bounds.set(t, n,
                 static_cast<float>(1.001 * (total[static_cast<size_t>(n)] + ulp(DType::kBf16, y) +
                                             (wanted.extras ? 1.5 * ulp(DType::kBf16, sum) : 0.0))));
    }
  }
  return worst_ratio(wanted.y, got.y, [&](int64_t t, int64_t n) { return bounds.at(t, n); });
}

WeightId add_experts(Suite& suite, Random& random, const ExpertsDesc& desc) {
  std::vector<testing::OwnedMatrix> matrices;
  for (int32_t e = 0; e < desc.experts; ++e) {
    for (int part = 0; part < 3; ++part) {
      const bool down = part == 2;
      matrices.push_back(random_matrix(random, desc.format, down ? desc.hidden : desc.intermediate,
                                       down ? desc.intermediate : desc.hidden, 0.05f));
    }
  }
  return suite.cpu().weights().add(std::move(matrices));
}

void check_experts(Suite& suite) {
  Random random(7);
  for (WeightFormat format : {WeightFormat::kNvfp4, WeightFormat::kBf16}) {
    const ExpertsDesc desc{256, 128, 16, 4, format, weight_only_lane(format), DType::kBf16};
    const WeightId id = add_experts(suite, random, desc);
    for (int32_t tokens : {1, 2, 9, 70}) {
      const ExpertsData data = experts_data(random, desc, tokens, tokens != 2);
      suite.check<ExpertsOp>(fmt::format("{} T={}", weight_format_name(format), tokens), desc, {tokens, tokens}, {id},
                             data, tokens, [&](const ExpertsData& a, const ExpertsData& b, std::string_view) {
                               return experts_ratio(desc, suite.cpu().weights().source(id), a, b);
                             });
    }
    ExpertsData whole = experts_data(random, desc, 70, false);
    std::vector<ExpertsData> parts;
    const std::vector<int64_t> firsts = {0, 1, 5, 66};
    for (int64_t first : firsts) {
      const int64_t count = first == 5 ? 12 : 1;
      ExpertsData part = experts_data(random, desc, count, false);
      part.x.fill([&](int64_t t, int64_t i) { return static_cast<float>(whole.x.at(first + t, i)); });
      part.ids.fill([&](int64_t t, int64_t i) { return static_cast<float>(whole.ids.at(first + t, i)); });
      part.weights.fill([&](int64_t t, int64_t i) { return static_cast<float>(whole.weights.at(first + t, i)); });
      parts.push_back(part);
    }
    suite.check_invariant<ExpertsOp>(fmt::format("{} in parts", weight_format_name(format)), desc, {70, 70}, {id},
                                     whole, parts, firsts);
  }
}

}  // namespace

void check_matrix_ops(Suite& suite) {
  check_embed(suite);
  check_rms_norm(suite);
  check_linear(suite);
  check_linear_invariance(suite);
  check_silu_mul(suite);
  check_router(suite);
  check_experts(suite);
}

}  // namespace assay::gpu_test

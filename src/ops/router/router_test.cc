#include "ops/router/router.h"

#include <gtest/gtest.h>

#include <numeric>

#include "ops/case_rows.h"
#include "ops/testing.h"

namespace assay::ops {
namespace {

using testing::Cpu;
using testing::OwnedMatrix;
using testing::Random;
using testing::Tensor;
using WF = numeric::WeightFormat;

std::vector<const char*> rows_of(const RouterDesc& desc) {
  return testing::cpu_rows<RouterOp>(desc, Cpu().device().caps());
}

// Those that run fp32 matrices.
std::vector<const char*> f32_rows(DType activation = DType::kF32) {
  return rows_of({16, 4, 1, false, WF::kF32, activation});
}

struct Routed {
  Tensor ids, weights, shared, logits;
  bool operator==(const Routed&) const = default;
};

Routed run(Cpu& cpu, const char* row, const RouterDesc& desc, const RouterOp::Weights& weights, const Tensor& x,
           const Tensor* forced = nullptr) {
  Routed out{Tensor(DType::kI32, x.rows(), desc.top_k), Tensor(DType::kF32, x.rows(), desc.top_k),
             Tensor(DType::kF32, x.rows(), 1), Tensor(DType::kF32, x.rows(), desc.experts)};
  const auto tokens = static_cast<int32_t>(x.rows());
  RouterOp::Args args;
  args.tokens = {0, tokens, nullptr};
  args.x = x.view();
  if (forced != nullptr) args.forced_ids = forced->view();
  args.ids = out.ids.view();
  args.weights = out.weights.view();
  if (desc.shared_gate) args.shared_scale = out.shared.view();
  args.logits = out.logits.view();
  cpu.prepare<RouterOp>(row, desc, {tokens, 1}, weights).run(args);
  EXPECT_TRUE(out.ids.guards_intact() && out.weights.guards_intact() && out.shared.guards_intact() &&
              out.logits.guards_intact());
  return out;
}

// A router whose logit e is x[e]: the gate is the identity.
struct Identity {
  RouterDesc desc;
  RouterOp::Weights weights;
  Identity(Cpu& cpu, int32_t experts, int32_t top_k, DType activation)
      : desc{experts, experts, top_k, false, WF::kF32, activation}, weights{WeightId::kNone, WeightId::kNone} {
    std::vector<float> values(static_cast<size_t>(experts) * static_cast<size_t>(experts), 0.0f);
    for (int32_t e = 0; e < experts; ++e) values[static_cast<size_t>(e) * static_cast<size_t>(experts + 1)] = 1.0f;
    weights.gate = cpu.weights().add(testing::encode(WF::kF32, experts, experts, values));
  }
};

// ids and weights of one token, given the row's own rounded logits: the largest, ties to the lowest index; a weight's
// relative error is that of expf's argument (its size times an eps), expf itself, k sums and a quotient.
void expect_choice(const RouterDesc& desc, const Routed& out, int64_t t, const char* row) {
  std::vector<int32_t> order(static_cast<size_t>(desc.experts));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return out.logits.at(t, a) > out.logits.at(t, b); });
  double sum = 0, total = 0;
  for (int32_t i = 0; i < desc.top_k; ++i)
    sum += std::exp(out.logits.at(t, order[static_cast<size_t>(i)]) - out.logits.at(t, order[0]));
  for (int32_t i = 0; i < desc.top_k; ++i) {
    const int32_t id = order[static_cast<size_t>(i)];
    ASSERT_EQ(out.ids.at(t, i), id) << row << " choice " << i;
    const double gap = out.logits.at(t, id) - out.logits.at(t, order[0]);
    const double wanted = std::exp(gap) / sum;
    ASSERT_NEAR(out.weights.at(t, i), wanted, (2 * std::abs(gap) + desc.top_k + 4) * 0x1p-23 * wanted + 0x1p-126)
        << row;
    total += out.weights.at(t, i);
  }
  ASSERT_NEAR(total, 1.0, desc.top_k * 0x1p-23) << row;
}

TEST(Router, RowsComputeTheFormula) {
  Random random(1);
  for (WF format : {WF::kBf16, WF::kF32, WF::kF16, WF::kNvfp4}) {
    for (DType activation : {DType::kBf16, DType::kF32}) {
      for (const auto& [experts, top_k, hidden] : {std::tuple{16, 4, 256}, {1, 1, 16}, {7, 7, 48}, {130, 10, 64}}) {
        for (int64_t tokens : {1, 9, 33}) {
          const RouterDesc desc{hidden, experts, top_k, tokens != 9, format, activation};
          Cpu cpu(2);
          RouterOp::Weights weights{WeightId::kNone, WeightId::kNone};
          weights.gate = cpu.weights().add(testing::random_matrix(random, format, experts, hidden));
          if (desc.shared_gate)
            weights.shared_gate = cpu.weights().add(testing::random_matrix(random, format, 1, hidden));
          Tensor x(activation, tokens, hidden);
          x.fill_normal(random);
          const auto gate = testing::decoded(cpu.weights().source(weights.gate).matrices[0]);
          for (const char* row : rows_of(desc)) {
            const Routed out = run(cpu, row, desc, weights, x);
            for (int64_t t = 0; t < tokens; ++t) {
              std::vector<double> token;
              for (int64_t k = 0; k < hidden; ++k) token.push_back(x.at(t, k));
              const auto shifts = case_shifts(format, activation, token);
              const auto dot = [&](const double* w) {
                return case_dot(token, shifts, {w, static_cast<size_t>(hidden)});
              };
              const auto bound = [&](const CaseDot& exact) {
                return testing::dot_error_bound(hidden, exact.magnitudes + exact.shifted) + exact.shifted +
                       testing::ulp(activation, exact.sum);
              };
              for (int32_t e = 0; e < experts; ++e) {
                const CaseDot logit = dot(gate.data() + e * hidden);
                ASSERT_NEAR(out.logits.at(t, e), logit.sum, bound(logit)) << row << " " << describe(desc);
              }
              expect_choice(desc, out, t, row);
              if (!desc.shared_gate) continue;
              const auto weight = testing::decoded(cpu.weights().source(weights.shared_gate).matrices[0]);
              const CaseDot logit = dot(weight.data());
              // The sigmoid's slope is at most 1/4; then expf, a sum and a quotient.
              ASSERT_NEAR(out.shared.at(t, 0), 1 / (1 + std::exp(-logit.sum)), bound(logit) / 4 + 4 * 0x1p-24);
            }
          }
        }
      }
    }
  }
}

TEST(Router, TiesGoToTheLowestIndexAndExtremeLogitsStayFinite) {
  for (const char* row : f32_rows()) {
    for (DType activation : {DType::kBf16, DType::kF32}) {
      Cpu cpu;
      const Identity router(cpu, 12, 3, activation);
      Tensor x(activation, 6, 12);
      x.fill([](int64_t t, int64_t e) -> float {
        switch (t) {
          case 0:
            return 0.0f;  // all equal
          case 1:
            return e >= 5 ? 2.0f : -1.0f;  // a tie across the k-th place
          case 2:
            return -3e38f;  // all huge and negative
          case 3:
            return e == 11 ? 3e38f : -3e38f;  // differences overflow
          case 4:
            return -100.0f - static_cast<float>(e);  // all negative
          default:
            return e % 2 == 0 ? -0.0f : 0.0f;  // zeros of both signs tie
        }
      });
      const Routed out = run(cpu, row, router.desc, router.weights, x);
      for (int64_t t = 0; t < 6; ++t) expect_choice(router.desc, out, t, row);
      const double wanted[6][3] = {{0, 1, 2}, {5, 6, 7}, {0, 1, 2}, {11, 0, 1}, {0, 1, 2}, {0, 1, 2}};
      for (int64_t t = 0; t < 6; ++t) {
        for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(out.ids.at(t, i), wanted[t][i]) << row << " token " << t;
      }
      EXPECT_EQ(out.weights.at(3, 0), 1.0);
      EXPECT_EQ(out.weights.at(0, 1), static_cast<double>(1.0f / 3.0f));
    }
  }
}

// Bad numbers give NaN weights, which the next norm's sentinel sees, and ids that are still experts, each once.
TEST(Router, NonFiniteLogitsGiveValidIdsAndNanWeights) {
  for (const char* row : f32_rows()) {
    Cpu cpu;
    // Not the identity: a NaN input makes every logit NaN; an infinite weight makes one logit infinite.
    std::vector<float> values(8 * 16, 0.5f);
    values[3 * 16] = INFINITY;
    const WeightId gate = cpu.weights().add(testing::encode(WF::kF32, 8, 16, values));
    const RouterDesc desc{16, 8, 4, false, WF::kF32, DType::kF32};
    Tensor x(DType::kF32, 2, 16);
    x.fill([](int64_t t, int64_t i) { return t == 0 && i == 2 ? std::nanf("") : 1.0f; });
    const Routed out = run(cpu, row, desc, {gate, WeightId::kNone}, x);
    const double wanted[2][4] = {{0, 1, 2, 3}, {3, 0, 1, 2}};
    for (int64_t t = 0; t < 2; ++t) {
      for (int64_t i = 0; i < 4; ++i) {
        EXPECT_EQ(out.ids.at(t, i), wanted[t][i]) << row << " token " << t;
        EXPECT_TRUE(std::isnan(out.weights.at(t, i))) << row << " token " << t;
      }
    }
  }
}

TEST(Router, ForcedIdsAreTakenInTheirOrder) {
  for (const char* row : f32_rows()) {
    Cpu cpu;
    const Identity router(cpu, 8, 3, DType::kF32);
    Tensor x(DType::kF32, 2, 8), forced(DType::kI32, 2, 3);
    x.fill([](int64_t t, int64_t e) {
      return t == 0 ? static_cast<float>(e) : (e == 0 ? 2000.0f : -2000.0f - static_cast<float>(e));
    });
    const int32_t ids[2][3] = {{1, 7, 2}, {4, 3, 5}};  // the second token's p would all underflow
    forced.fill([&](int64_t t, int64_t i) { return static_cast<float>(ids[t][i]); });
    const Routed out = run(cpu, row, router.desc, router.weights, x, &forced);
    for (int64_t t = 0; t < 2; ++t) {
      double sum = 0;
      for (int64_t i = 0; i < 3; ++i) sum += std::exp(x.at(t, ids[t][i]) - x.at(t, ids[t][1]));
      for (int64_t i = 0; i < 3; ++i) {
        EXPECT_EQ(out.ids.at(t, i), ids[t][i]);
        EXPECT_NEAR(out.weights.at(t, i), std::exp(x.at(t, ids[t][i]) - x.at(t, ids[t][1])) / sum, 1e-6);
      }
    }
  }
}

TEST(Router, BitsDependOnNeitherBatchNorThreads) {
  for (DType activation : {DType::kBf16, DType::kF32}) {
    const RouterDesc desc{560, 130, 10, true, WF::kBf16, activation};
    std::map<OrderId, Routed> by_order;
    for (const char* row : rows_of(desc)) {
      const auto with_threads = [&](int threads, const Tensor& x) {
        Random random(3);
        Cpu cpu(threads);
        RouterOp::Weights weights{WeightId::kNone, WeightId::kNone};
        weights.gate = cpu.weights().add(testing::random_matrix(random, WF::kBf16, desc.experts, desc.hidden));
        weights.shared_gate = cpu.weights().add(testing::random_matrix(random, WF::kBf16, 1, desc.hidden));
        return run(cpu, row, desc, weights, x);
      };
      Random random(4);
      Tensor x(activation, 150, desc.hidden);
      x.fill_normal(random);
      const Routed batched = with_threads(1, x);
      EXPECT_EQ(with_threads(2, x), batched) << row;
      EXPECT_EQ(with_threads(3, x), batched) << row;
      const OrderId order = testing::row_named<RouterOp>(row).order(desc);
      EXPECT_EQ(by_order.try_emplace(order, batched).first->second, batched) << row;
      for (int64_t t : {0, 31, 32, 149}) {
        Tensor one(activation, 1, desc.hidden);
        one.fill([&](int64_t, int64_t i) { return static_cast<float>(x.at(t, i)); });
        const Routed single = with_threads(1, one);
        for (int64_t e = 0; e < desc.experts; ++e) ASSERT_EQ(single.logits.at(0, e), batched.logits.at(t, e)) << row;
        for (int64_t i = 0; i < desc.top_k; ++i) ASSERT_EQ(single.weights.at(0, i), batched.weights.at(t, i)) << row;
      }
    }
  }
}

}  // namespace
}  // namespace assay::ops

#include "ops/experts/experts.h"

#include <gtest/gtest.h>

#include <functional>

#include "ops/case_rows.h"
#include "ops/testing.h"

namespace assay::ops {
namespace {

using testing::Cpu;
using testing::OwnedMatrix;
using testing::Random;
using testing::Tensor;
using WF = numeric::WeightFormat;

std::vector<const char*> rows_of(const ExpertsDesc& desc) {
  return testing::cpu_rows<ExpertsOp>(desc, Cpu().device().caps());
}

ExpertsDesc make_desc(int64_t hidden, int64_t intermediate, int32_t experts, int32_t top_k, WF format,
                      DType activation) {
  return {hidden, intermediate, experts, top_k, format, format == WF::kNvfp4 ? Lane::kW4A16 : Lane::kBf16, activation};
}

// Every matrix has its own global scale, gate and up of one expert too.
std::vector<OwnedMatrix> random_experts(Random& random, const ExpertsDesc& desc) {
  std::vector<OwnedMatrix> matrices;
  for (int32_t e = 0; e < desc.experts; ++e) {
    matrices.push_back(testing::random_matrix(random, desc.format, desc.intermediate, desc.hidden));
    matrices.push_back(testing::random_matrix(random, desc.format, desc.intermediate, desc.hidden));
    matrices.push_back(testing::random_matrix(random, desc.format, desc.hidden, desc.intermediate));
  }
  return matrices;
}

struct Inputs {
  Tensor x, ids, weights, shared, shared_scale, residual;
  bool with_shared = true, with_residual = true;

  // mode 0: random distinct experts; 1: all tokens on the last k experts, in descending order.
  Inputs(Random& random, const ExpertsDesc& desc, int64_t tokens, int mode = 0)
      : x(desc.activation, tokens, desc.hidden),
        ids(DType::kI32, tokens, desc.top_k),
        weights(DType::kF32, tokens, desc.top_k),
        shared(desc.activation, tokens, desc.hidden, 1),
        shared_scale(DType::kF32, tokens, 1),
        residual(desc.activation, tokens, desc.hidden, 2) {
    x.fill_normal(random);
    weights.fill([&](int64_t, int64_t) { return random.uniform(0.0f, 0.5f); });
    shared.fill_normal(random);
    shared_scale.fill([&](int64_t, int64_t) { return random.uniform(0.0f, 1.0f); });
    residual.fill_normal(random);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t i = 0; i < desc.top_k; ++i) {
        const int64_t start = mode == 0 ? random.below(desc.experts) : desc.experts - 1;
        bool again = true;
        for (int64_t id = start; again; id = (id + desc.experts - 1) % desc.experts) {
          again = false;
          for (int64_t j = 0; j < i; ++j) again |= ids.at(t, j) == static_cast<double>(id);
          if (!again) ids.set(t, i, static_cast<float>(id));
        }
      }
    }
  }

  // The same inputs for one token.
  Inputs token(int64_t t) const {
    Inputs one = *this;
    for (Tensor Inputs::*part :
         {&Inputs::x, &Inputs::ids, &Inputs::weights, &Inputs::shared, &Inputs::shared_scale, &Inputs::residual}) {
      const Tensor& from = this->*part;
      one.*part = Tensor(from.dtype(), 1, from.cols());
      (one.*part).fill([&](int64_t, int64_t i) { return static_cast<float>(from.at(t, i)); });
    }
    return one;
  }

  ExpertsOp::Args args(View y) const {
    ExpertsOp::Args args;
    args.tokens = {0, static_cast<int32_t>(x.rows()), nullptr};
    args.x = x.view();
    args.ids = ids.view();
    args.weights = weights.view();
    if (with_shared) args.shared = shared.view(), args.shared_scale = shared_scale.view();
    if (with_residual) args.residual = residual.view();
    args.y = y;
    return args;
  }
};

Tensor run(Cpu& cpu, const char* row, const ExpertsDesc& desc, WeightId id, const Inputs& in, Taps* taps = nullptr,
           int32_t decode = 0) {
  Tensor y(desc.activation, in.x.rows(), desc.hidden);
  ExpertsOp::Args args = in.args(y.view());
  args.tokens.decode = decode;
  cpu.prepare<ExpertsOp>(row, desc, {static_cast<int32_t>(in.x.rows()), 1}, {id}).run(args, taps, nullptr, 5);
  EXPECT_TRUE(y.guards_intact());
  return y;
}

struct Bounded {
  double value = 0, error = 0;
};

Bounded dot(const ExpertsDesc& desc, const double* w, int64_t k, const std::function<Bounded(int64_t)>& x) {
  Bounded sum;
  double magnitudes = 0;
  std::vector<double> largest(static_cast<size_t>(k));
  for (int64_t i = 0; i < k; ++i) {
    const Bounded term = x(i);
    sum.value += term.value * w[i];
    sum.error += term.error * std::abs(w[i]);
    largest[static_cast<size_t>(i)] = std::abs(term.value) + term.error;
    magnitudes += largest[static_cast<size_t>(i)] * std::abs(w[i]);
  }
  const auto shifts = case_shifts(desc.format, desc.activation, largest);
  double shifted = 0;
  for (int64_t i = 0; i < k; ++i) shifted += shifts[static_cast<size_t>(i)] * std::abs(w[i]);
  sum.error += testing::dot_error_bound(k, magnitudes + shifted) + shifted;
  return sum;
}

// h of one use with its bound: errors of both dots through silu (slope at most 1.1) and the product, six more
// roundings, then one ulp of the activation dtype.
Bounded hidden(const ExpertsDesc& desc, Bounded gate, Bounded up) {
  const double silu = gate.value / (1 + std::exp(-gate.value));
  const double silu_error = 1.1 * gate.error + 5 * 0x1p-24 * std::abs(silu);
  const double value = silu * up.value;
  const double error =
      silu_error * (std::abs(up.value) + up.error) + std::abs(silu) * up.error + 0x1p-24 * std::abs(value);
  return {value, error + testing::ulp(desc.activation, std::abs(value) + error)};
}

void expect_right(const ExpertsDesc& desc, const WeightSource& source, const Inputs& in, const Tensor& y,
                  const char* row) {
  std::vector<std::vector<double>> matrices;
  for (const auto& matrix : source.matrices) matrices.push_back(testing::decoded(matrix));
  const int64_t inner = desc.intermediate;
  for (int64_t t = 0; t < in.x.rows(); ++t) {
    std::vector<Bounded> h(static_cast<size_t>(desc.top_k * inner));
    for (int64_t i = 0; i < desc.top_k; ++i) {
      const auto expert = static_cast<size_t>(in.ids.at(t, i));
      const auto x = [&](int64_t k) { return Bounded{in.x.at(t, k), 0}; };
      for (int64_t r = 0; r < inner; ++r) {
        const Bounded gate = dot(desc, matrices[3 * expert].data() + r * desc.hidden, desc.hidden, x);
        const Bounded up = dot(desc, matrices[3 * expert + 1].data() + r * desc.hidden, desc.hidden, x);
        h[static_cast<size_t>(i * inner + r)] = hidden(desc, gate, up);
      }
    }
    for (int64_t n = 0; n < desc.hidden; ++n) {
      double sum = 0, bound = 0, magnitudes = 0;
      for (int64_t i = 0; i < desc.top_k; ++i) {
        const auto expert = static_cast<size_t>(in.ids.at(t, i));
        const Bounded down = dot(desc, matrices[3 * expert + 2].data() + n * inner, inner,
                                 [&](int64_t k) { return h[static_cast<size_t>(i * inner + k)]; });
        sum += in.weights.at(t, i) * down.value;
        bound += in.weights.at(t, i) * down.error;
        magnitudes += std::abs(in.weights.at(t, i) * down.value);
      }
      if (in.with_shared) {
        sum += in.shared_scale.at(t, 0) * in.shared.at(t, n);
        magnitudes += std::abs(in.shared_scale.at(t, 0) * in.shared.at(t, n));
      }
      bound += (desc.top_k + 2) * 0x1p-24 * magnitudes + testing::ulp(desc.activation, sum);
      if (in.with_residual) {
        sum += in.residual.at(t, n);
        bound += testing::ulp(desc.activation, sum);
      }
      ASSERT_NEAR(y.at(t, n), sum, bound) << row << " " << describe(desc) << " t=" << t << " n=" << n;
    }
  }
}

TEST(Experts, RowsComputeTheFormula) {
  Random random(1);
  for (WF format : {WF::kNvfp4, WF::kBf16, WF::kF16, WF::kF32}) {
    for (DType activation : {DType::kBf16, DType::kF32}) {
      for (const auto& [hidden, inner, experts, top_k] : {std::tuple{64, 32, 16, 4}, {16, 16, 3, 3}, {48, 112, 5, 1}}) {
        for (int64_t tokens : {1, 2, 9, 33}) {
          const ExpertsDesc desc = make_desc(hidden, inner, experts, top_k, format, activation);
          Cpu cpu(2);
          const WeightId id = cpu.weights().add(random_experts(random, desc));
          Inputs in(random, desc, tokens, tokens == 33 ? 1 : 0);
          in.with_shared = tokens != 2;
          in.with_residual = tokens != 9;
          for (const char* row : rows_of(desc)) {
            expect_right(desc, cpu.weights().source(id), in, run(cpu, row, desc, id, in), row);
          }
        }
      }
    }
  }
}

TEST(Experts, PocketSizesAndOddSizes) {
  Random random(2);
  for (const ExpertsDesc& desc :
       {make_desc(256, 128, 16, 4, WF::kNvfp4, DType::kBf16), make_desc(37, 19, 4, 2, WF::kBf16, DType::kBf16),
        make_desc(1, 1, 1, 1, WF::kF32, DType::kF32)}) {
    Cpu cpu;
    const WeightId id = cpu.weights().add(random_experts(random, desc));
    const Inputs in(random, desc, 3);
    for (const char* row : rows_of(desc))
      expect_right(desc, cpu.weights().source(id), in, run(cpu, row, desc, id, in), row);
  }
}

// A one-hot x picks a column of gate and up: h is then silu and product of the canonical weights, so rows, experts and
// halves cannot be mixed up.
TEST(Experts, TapShowsTheHiddenActivationsOfOneHotInputs) {
  Random random(3);
  const ExpertsDesc desc = make_desc(32, 48, 6, 2, WF::kNvfp4, DType::kF32);
  for (const char* row : rows_of(desc)) {
    Cpu cpu;
    const WeightId id = cpu.weights().add(random_experts(random, desc));
    Inputs in(random, desc, 32);
    in.x.fill([](int64_t t, int64_t k) { return t == k ? 1.0f : 0.0f; });
    testing::RecordingTaps taps;
    run(cpu, row, desc, id, in, &taps);
    ASSERT_EQ(taps.records.count("experts.hidden"), 1u);
    const auto& record = taps.records["experts.hidden"];
    EXPECT_EQ(record.layer, 5);
    ASSERT_EQ(record.rows, 64);
    ASSERT_EQ(record.cols, 48);
    for (int64_t t = 0; t < 32; ++t) {
      for (int64_t i = 0; i < 2; ++i) {
        const auto expert = static_cast<size_t>(in.ids.at(t, i));
        const auto gate = testing::decoded(cpu.weights().source(id).matrices[3 * expert]);
        const auto up = testing::decoded(cpu.weights().source(id).matrices[3 * expert + 1]);
        for (int64_t r = 0; r < 48; ++r) {
          const double g = gate[static_cast<size_t>(r * 32 + t)], u = up[static_cast<size_t>(r * 32 + t)];
          const double wanted = g / (1 + std::exp(-g)) * u;
          ASSERT_NEAR(record.values[static_cast<size_t>((t * 2 + i) * 48 + r)], wanted,
                      10 * 0x1p-24 * std::abs(wanted));
        }
      }
    }
  }
}

// Blocks whose scale byte is 0x00 contribute exactly nothing.
TEST(Experts, ZeroScalesGiveExactlyTheResidual) {
  Random random(4);
  const ExpertsDesc desc = make_desc(64, 32, 4, 2, WF::kNvfp4, DType::kBf16);
  auto matrices = random_experts(random, desc);
  for (size_t i = 2; i < matrices.size(); i += 3)
    std::fill(matrices[i].scales.begin(), matrices[i].scales.end(), std::byte{0});
  Cpu cpu;
  const WeightId id = cpu.weights().add(std::move(matrices));
  Inputs in(random, desc, 4);
  in.with_shared = false;
  for (const char* row : rows_of(desc)) {
    const Tensor y = run(cpu, row, desc, id, in);
    for (int64_t t = 0; t < 4; ++t) {
      for (int64_t n = 0; n < 64; ++n) ASSERT_EQ(y.at(t, n), in.residual.at(t, n)) << row;
    }
  }
}

TEST(Experts, OutputMayBeTheResidual) {
  Random random(5);
  const ExpertsDesc desc = make_desc(64, 32, 8, 3, WF::kNvfp4, DType::kBf16);
  for (const char* row : rows_of(desc)) {
    Cpu cpu;
    const WeightId id = cpu.weights().add(random_experts(random, desc));
    Inputs in(random, desc, 5);
    const Tensor apart = run(cpu, row, desc, id, in);
    cpu.prepare<ExpertsOp>(row, desc, {5, 1}, {id}).run(in.args(in.residual.view()));
    for (int64_t t = 0; t < 5; ++t) {
      for (int64_t n = 0; n < 64; ++n) ASSERT_EQ(in.residual.at(t, n), apart.at(t, n));
    }
  }
}

// Prefill = decode = batched, for any thread count: bit for bit. The order of a token's choices does not matter either.
// Rows of one order agree.
TEST(Experts, BitsDependOnNeitherBatchNorThreads) {
  for (WF format : {WF::kNvfp4, WF::kBf16}) {
    for (DType activation : {DType::kBf16, DType::kF32}) {
      const ExpertsDesc desc = make_desc(256, 128, 16, 4, format, activation);
      std::map<OrderId, Tensor> by_order;
      for (const char* row : rows_of(desc)) {
        if (row == std::string_view("reference")) continue;
        const auto with_threads = [&](int threads, const Inputs& in) {
          Random weights(6);
          Cpu cpu(threads);
          const WeightId id = cpu.weights().add(random_experts(weights, desc));
          return run(cpu, row, desc, id, in);
        };
        Random random(7);
        const Inputs in(random, desc, 70);
        const Tensor batched = with_threads(1, in);
        EXPECT_EQ(with_threads(2, in), batched) << row;
        EXPECT_EQ(with_threads(3, in), batched) << row;
        const OrderId order = testing::row_named<ExpertsOp>(row).order(desc);
        EXPECT_EQ(by_order.try_emplace(order, batched).first->second, batched) << row;
        for (int64_t t : {0, 1, 33, 69}) {
          Inputs one = in.token(t);
          const double first_id = one.ids.at(0, 0), first_weight = one.weights.at(0, 0);
          one.ids.set(0, 0, static_cast<float>(one.ids.at(0, 3)));
          one.weights.set(0, 0, static_cast<float>(one.weights.at(0, 3)));
          one.ids.set(0, 3, static_cast<float>(first_id));
          one.weights.set(0, 3, static_cast<float>(first_weight));
          const Tensor single = with_threads(2, one);
          for (int64_t n = 0; n < desc.hidden; ++n) ASSERT_EQ(single.at(0, n), batched.at(t, n)) << row;
        }
      }
    }
  }
}

// A step of both phases gives a token the bits that a step of its phase alone gives it.
TEST(Experts, BitsOfATokenDependOnItsPhaseAlone) {
  constexpr int32_t kTokens = 150;
  const ExpertsDesc desc = make_desc(256, 128, 4, 2, WF::kNvfp4, DType::kBf16);  // an expert has tokens of both
  Random random(8);
  Cpu cpu;
  const WeightId id = cpu.weights().add(random_experts(random, desc));
  const Inputs in(random, desc, kTokens);
  for (const char* row : rows_of(desc)) {
    const Tensor prefill = run(cpu, row, desc, id, in), decode = run(cpu, row, desc, id, in, nullptr, kTokens);
    for (const int32_t count : {1, 19, 140}) {
      const Tensor both = run(cpu, row, desc, id, in, nullptr, count);
      ASSERT_EQ(testing::first_other_row(both, decode, count, prefill), kTokens) << row << ", decode " << count;
    }
    if (row == std::string_view("cpu_avx2_phased")) {
      EXPECT_EQ(decode, run(cpu, "cpu_avx2", desc, id, in));
    }
  }
}

TEST(Experts, RowsRefuseAndReport) {
  for (const char* row : {"reference", "cpu_portable"}) {
    const auto& impl = testing::row_named<ExpertsOp>(row);
    ExpertsDesc desc = make_desc(64, 32, 4, 2, WF::kNvfp4, DType::kBf16);
    EXPECT_FALSE(impl.can_run(desc, DeviceCaps{}));
    desc.lane = Lane::kW4A4;
    EXPECT_TRUE(impl.can_run(desc, DeviceCaps{}));
    EXPECT_TRUE(impl.can_run(make_desc(64, 24, 4, 2, WF::kNvfp4, DType::kBf16), DeviceCaps{}));
    Random random(8);
    Cpu cpu;
    const WeightId id = cpu.weights().add(random_experts(random, make_desc(64, 32, 4, 2, WF::kNvfp4, DType::kBf16)));
    MakeContext context = cpu.context();
    for (const ExpertsDesc& wrong :
         {make_desc(64, 32, 5, 2, WF::kNvfp4, DType::kBf16), make_desc(32, 64, 4, 2, WF::kNvfp4, DType::kBf16)}) {
      const auto plan = impl.make(wrong, {1, 1}, {id}, context);
      ASSERT_FALSE(plan.ok());
      EXPECT_EQ(plan.error().kind, ErrorKind::kCheckpoint);
    }
  }
}

}  // namespace
}  // namespace assay::ops

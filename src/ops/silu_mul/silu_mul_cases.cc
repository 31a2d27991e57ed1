// What silu_mul is proven with.
//
// Bound of y = round(g / (1 + exp(-g)) * up), relative: exp is within 4 u of right (rows may use their own), the sum,
// the quotient and the product round once each: 8 u, and u |g| more because exp's argument is rounded when it is
// reduced. Plus one ulp of y. Where exp(-g) is beyond fp32 (g < -88) the right answer is below 1e-36 |up|: that much is
// let pass.
#include <algorithm>

#include "ops/all_cases.h"

namespace assay::ops {

std::vector<Case<SiluMulOp>> make_cases(const SiluMulDesc& desc, const NoWeights&, const CaseContext& context) {
  std::vector<Case<SiluMulOp>> cases;
  const auto most = static_cast<int32_t>(std::clamp<int64_t>(2'000'000 / desc.width, 3, 100'000));
  std::vector<int32_t> counts = token_counts(context, context.bucket.tokens, most);
  // The last case: token 0 has a NaN in its last gate, token 1 in its first up; one output each is a NaN then.
  constexpr int32_t kNotFinite = 3;
  const size_t usual = counts.size();
  if (kNotFinite <= context.bucket.tokens) counts.push_back(kNotFinite);
  for (int32_t tokens : counts) {
    CaseRandom random(context.seed + static_cast<uint64_t>(tokens));
    Case<SiluMulOp> made;
    const bool not_finite = cases.size() == usual;
    made.name = fmt::format("{} T={}", not_finite ? "not finite" : "mixed", tokens);
    made.digest = !not_finite;  // NaNs have many encodings
    made.work = tokens * desc.width * 8;
    made.bucket = {tokens, tokens, tokens};
    made.bench = std::make_unique<Bench>(context.device, cases.size() % 2 == 0);
    Bench& bench = *made.bench;
    const int in =
        bench.add("gate_up", desc.activation, tokens, 2 * desc.width, Role::kInput, 64, [&](int64_t t, int64_t i) {
          const bool chosen = not_finite && t < 2 && i == desc.width - 1 + t;
          return chosen ? std::nan("") : 3 * mixed_input(random, t % 8 == 4 ? 0 : t, i);
        });
    const int out = bench.add("y", desc.activation, tokens, desc.width, Role::kOutput, 64);
    made.args = {{0, tokens, nullptr}, bench.view(in), bench.view(out)};
    made.judge = [&bench, desc, tokens, in, out](Comparison& comparison) {
      Block block;
      for (int32_t t = 0; t < tokens; ++t) {
        for (int64_t i = 0; i < desc.width; ++i) {
          const double gate = bench.initial(in, t, i), up = bench.initial(in, t, desc.width + i);
          const double y = gate / (1 + std::exp(-gate)) * up;
          const double accumulated =
              (8 + std::abs(gate)) * kUnit * std::abs(y) + (gate < -80 ? 1e-33 * std::abs(up) : 0);
          const double rounding = ulp(desc.activation, std::abs(y) + accumulated);
          comparison.within(Evidence::kSampled, "y", t, i, bench.at(out, t, i), y, accumulated + rounding);
          if (!std::isnan(y)) block.add(bench.at(out, t, i), y, accumulated, rounding);
        }
      }
      block.judge(comparison, "y", 0, 0);
    };
    cases.push_back(std::move(made));
  }
  return cases;
}

}  // namespace assay::ops

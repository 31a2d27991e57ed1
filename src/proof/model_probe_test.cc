#include "proof/model_probe.h"

#include <gtest/gtest.h>

#include <cmath>
#include <optional>

namespace assay::proof {
namespace {

// Logits made of token and position; `error` is added to one of them everywhere.
class Fake : public ModelProbe {
 public:
  explicit Fake(float error = 0) : error_(error) {}
  int32_t vocab() const override { return 8; }
  int32_t most_tokens() const override { return 100; }
  std::vector<float> logits(std::span<const int32_t> text, Arrangement arrangement) override {
    std::vector<float> all;
    for (size_t t = 0; t < text.size(); ++t) {
      for (int32_t id = 0; id < 8; ++id) {
        all.push_back(std::sin(static_cast<float>(text[t] * 3 + id)) + (id == 3 ? error_ : 0));
      }
    }
    if (arrangement == differs) all[40] += 1e-6f;
    return all;
  }
  std::optional<Arrangement> differs;

 private:
  float error_;
};

const std::vector<int32_t> kText{1, 2, 3, 4, 5, 6, 7, 8, 9, 10};

// Of the first five tokens.
ReferenceLogits reference(float same, float exact) {
  const auto text = std::span(kText).first(5);
  return {Fake(same).logits(text, Arrangement::kWhole), Fake(exact).logits(text, Arrangement::kWhole)};
}

TEST(Model, PassesWithinTheNoiseOfRounding) {
  Fake chosen(0.001f);
  const ModelVerdict verdict = prove_model(chosen, reference(0, -0.001f), kText);
  EXPECT_EQ(verdict.state, State::kPassed) << verdict.reason;
  EXPECT_EQ(verdict.tokens, 5);
  EXPECT_EQ(verdict.cut_tokens, 10);
  EXPECT_GT(verdict.mean_kl, 0);
}

TEST(Model, FailsBeyondIt) {
  Fake chosen(0.05f);
  const ModelVerdict verdict = prove_model(chosen, reference(0, -0.001f), kText);
  EXPECT_EQ(verdict.state, State::kFailed);
  EXPECT_NE(verdict.reason.find("KL"), std::string::npos);
}

TEST(Model, CutAndBatchedMustGiveTheSameBits) {
  Fake chosen;
  chosen.differs = Arrangement::kBatched;
  EXPECT_NE(prove_model(chosen, {}, kText).reason.find("token 5 differ between whole and batched"), std::string::npos);
  chosen.differs = Arrangement::kCut;
  EXPECT_EQ(prove_model(chosen, {}, kText).state, State::kFailed);
}

TEST(Model, ANanIsNoSmallDivergence) {
  const std::vector<float> good{1, 2}, bad{1, NAN};
  EXPECT_EQ(divergence(good, bad), INFINITY);
  EXPECT_NEAR(divergence(good, good), 0, 1e-12);
  EXPECT_NEAR(divergence(std::vector<float>{0, 0}, std::vector<float>{0, 1}), std::log((1 + std::exp(1)) / 2) - 0.5,
              1e-6);
}

}  // namespace
}  // namespace assay::proof

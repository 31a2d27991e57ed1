#include "proof/model_probe.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include <fmt/format.h>

#include "base/clock.h"

namespace assay::proof {
namespace {

double log_sum(std::span<const float> logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float logit : logits) sum += std::exp(logit - largest);
  return largest + std::log(sum);
}

}  // namespace

double divergence(std::span<const float> p_logits, std::span<const float> q_logits) {
  const auto finite = [](float x) { return std::isfinite(x); };
  if (!std::all_of(p_logits.begin(), p_logits.end(), finite) ||
      !std::all_of(q_logits.begin(), q_logits.end(), finite)) {
    return std::numeric_limits<double>::infinity();
  }
  const double p_sum = log_sum(p_logits), q_sum = log_sum(q_logits);
  double kl = 0;
  for (size_t i = 0; i < p_logits.size(); ++i) {
    const double log_p = p_logits[i] - p_sum, log_q = q_logits[i] - q_sum;
    kl += std::exp(log_p) * (log_p - log_q);
  }
  return std::max(kl, 0.0);
}

ModelVerdict prove_model(ModelProbe& chosen, const ReferenceLogits& reference, std::span<const int32_t> text) {
  ModelVerdict verdict;
  verdict.run = true;
  const int64_t start = now_us();
  const auto vocab = static_cast<size_t>(chosen.vocab());
  text = text.first(std::min(text.size(), static_cast<size_t>(chosen.most_tokens())));
  const std::vector<float> whole = chosen.logits(text, Arrangement::kWhole);
  const auto row = [&](const std::vector<float>& logits, size_t t) {
    return std::span(logits).subspan(t * vocab, vocab);
  };
  const auto fail = [&](std::string reason) {
    verdict.state = State::kFailed;
    if (verdict.reason.empty()) verdict.reason = std::move(reason);
  };
  for (const Arrangement arrangement : {Arrangement::kCut, Arrangement::kBatched}) {
    const std::vector<float> other = chosen.logits(text, arrangement);
    for (size_t t = 0; t < text.size(); ++t) {
      if (std::memcmp(row(whole, t).data(), row(other, t).data(), vocab * sizeof(float)) == 0) continue;
      fail(fmt::format("model: the logits after token {} differ between whole and {}", t,
                       arrangement == Arrangement::kCut ? "cut" : "batched"));
      break;
    }
  }
  verdict.cut_tokens = static_cast<int32_t>(text.size());
  const size_t compared = std::min(reference.same.size() / vocab, text.size());
  if (compared > 0) {
    const std::vector<float>&wanted = reference.same, &exact = reference.exact;
    const auto count = static_cast<double>(compared);
    for (size_t t = 0; t < compared; ++t) {
      const double kl = divergence(row(wanted, t), row(whole, t));
      verdict.mean_kl += kl / count;
      verdict.max_kl = std::max(verdict.max_kl, kl);
      if (!exact.empty()) verdict.noise_kl += divergence(row(exact, t), row(wanted, t)) / count;
    }
    verdict.tokens = static_cast<int32_t>(compared);
    verdict.limit = exact.empty() ? 1e-8 : std::max(8 * verdict.noise_kl, 1e-6);
    if (!(verdict.mean_kl <= verdict.limit)) {
      fail(fmt::format("model: KL to the reference rows is {:.3g} nats a token, limit {:.3g}", verdict.mean_kl,
                       verdict.limit));
    }
  }
  verdict.milliseconds = static_cast<double>(now_us() - start) / 1e3;
  return verdict;
}

}  // namespace assay::proof

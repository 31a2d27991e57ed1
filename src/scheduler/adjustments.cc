#include "scheduler/adjustments.h"

namespace assay::scheduler {

Adjustments::Adjustments(const Request& request)
    : presence_(request.presence_penalty),
      frequency_(request.frequency_penalty),
      repetition_(request.repetition_penalty),
      min_tokens_(request.min_tokens),
      penalises_(presence_ != 0 || frequency_ != 0 || repetition_ != 1) {
  for (const auto& [token, bias] : request.logit_bias) entries_[token].bias += bias;
  if (min_tokens_ > 0) {
    for (const int32_t token : request.stop_tokens) entries_[token].stops = true;
  }
  if (repetition_ != 1) {
    for (const int32_t token : request.prompt) entries_[token].seen = true;
  }
}

void Adjustments::generated(int32_t token) {
  if (!penalises_) return;
  Entry& entry = entries_[token];
  entry.seen = true;
  ++entry.generated;
}

void Adjustments::append(int32_t index, std::vector<ops::LogitAdjustment>& list) const {
  for (const auto& [token, entry] : entries_) {
    ops::LogitAdjustment adjustment;
    adjustment.token = token;
    if (entry.seen) adjustment.scale = repetition_;
    adjustment.add = entry.bias;
    if (entry.generated > 0) {
      adjustment.add -= presence_;
      adjustment.add -= frequency_ * static_cast<float>(entry.generated);
    }
    if (entry.stops && index < min_tokens_) adjustment.add -= ops::kBannedLogit;
    if (adjustment.scale != 1 || adjustment.add != 0) list.push_back(adjustment);
  }
}

}  // namespace assay::scheduler

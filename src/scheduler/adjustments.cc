#include "scheduler/adjustments.h"

#include <algorithm>

namespace assay::scheduler {

Adjustments::Adjustments(const Request& request, int32_t most_generated)
    : presence_(request.presence_penalty),
      frequency_(request.frequency_penalty),
      repetition_(request.repetition_penalty),
      min_tokens_(request.min_tokens),
      penalises_(presence_ != 0 || frequency_ != 0 || repetition_ != 1) {
  std::vector<int32_t> tokens;
  for (const auto& [token, bias] : request.logit_bias) tokens.push_back(token);
  if (min_tokens_ > 0) tokens.insert(tokens.end(), request.stop_tokens.begin(), request.stop_tokens.end());
  if (repetition_ != 1) tokens.insert(tokens.end(), request.prompt.begin(), request.prompt.end());
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  entries_.reserve(tokens.size() + (penalises_ ? static_cast<size_t>(most_generated) : 0));
  for (const int32_t token : tokens) entries_.push_back({.token = token});
  for (const auto& [token, bias] : request.logit_bias) entry_of(token).bias += bias;
  if (min_tokens_ > 0) {
    for (const int32_t token : request.stop_tokens) entry_of(token).stops = true;
  }
  if (repetition_ != 1) {
    for (const int32_t token : request.prompt) entry_of(token).seen = true;
  }
}

Adjustments::Entry& Adjustments::entry_of(int32_t token) {
  return *std::ranges::lower_bound(entries_, token, {}, &Entry::token);
}

void Adjustments::generated(int32_t token) {
  if (!penalises_) return;
  auto entry = std::ranges::lower_bound(entries_, token, {}, &Entry::token);
  if (entry == entries_.end() || entry->token != token) entry = entries_.insert(entry, {.token = token});
  entry->seen = true;
  ++entry->generated;
}

void Adjustments::append(int32_t index, std::vector<ops::LogitAdjustment>& list) const {
  for (const Entry& entry : entries_) {
    ops::LogitAdjustment adjustment;
    adjustment.token = entry.token;
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

#include "engine/ledger.h"

#include <fmt/core.h>

#include <algorithm>

namespace assay::engine {
namespace {

std::string readable(int64_t bytes) {
  if (bytes < 10'000) return fmt::format("{} B", bytes);
  const auto value = static_cast<double>(bytes);
  if (bytes < 10'000'000) return fmt::format("{:.1f} kB", value / 1e3);
  return bytes < 10'000'000'000 ? fmt::format("{:.1f} MB", value / 1e6) : fmt::format("{:.1f} GB", value / 1e9);
}

Error too_large(const MemoryWishes& wishes, int64_t needed, int64_t allowed) {
  return {ErrorKind::kResource,
          "the model does not fit into memory",
          "memory",
          fmt::format("{} allowed ({:.0f}% of {})", readable(allowed), 100 * wishes.utilization,
                      readable(wishes.memory_bytes)),
          fmt::format("{} for the weights, the workspace of a step and one request", readable(needed)),
          "raise --memory-utilization, or take fewer --dummy-layers or a smaller model"};
}

}  // namespace

Result<MemoryFit> fit_memory(const MemoryWishes& wishes, const MemoryCosts& costs) {
  const auto allowed = static_cast<int64_t>(static_cast<double>(wishes.memory_bytes) * wishes.utilization);
  const int64_t left = allowed - costs.fixed_bytes;
  const int64_t state_bytes = costs.slots_per_sequence * costs.slot_bytes;
  if (left < state_bytes + costs.page_bytes) {
    return too_large(wishes, costs.fixed_bytes + state_bytes + costs.page_bytes, allowed);
  }
  MemoryFit fit{.context_tokens = wishes.context_tokens, .sequences = wishes.sequences};

  if (state_bytes * fit.sequences > left / 2) {
    fit.sequences = static_cast<int32_t>(std::max<int64_t>(left / 2 / state_bytes, 1));
    fit.changes.push_back(fmt::format("max-running-requests {} -> {}: each takes {} of state, and {} are left for it",
                                      wishes.sequences, fit.sequences, readable(state_bytes), readable(left / 2)));
  }
  fit.state_slots = costs.slot_bytes > 0 ? costs.slots_per_sequence * fit.sequences : 0;

  const auto pages_for = [&](int64_t tokens) { return (tokens + costs.page_tokens - 1) / costs.page_tokens; };
  const int64_t wanted = pages_for(wishes.context_tokens) * fit.sequences;
  fit.page_count = static_cast<int32_t>(wanted);
  if (costs.page_bytes == 0) return fit;
  const int64_t room = left - state_bytes * fit.sequences;
  const int64_t fitting = std::min(wishes.kv_cache_bytes, room) / costs.page_bytes;
  if (room < wishes.kv_cache_bytes && fitting < wanted) {
    fit.changes.push_back(fmt::format("kv-cache-bytes {} -> {}: no more is left beside weights, workspace and state",
                                      wishes.kv_cache_bytes, fitting * costs.page_bytes));
  }
  fit.page_count = static_cast<int32_t>(std::min(wanted, fitting));
  if (fitting >= pages_for(wishes.context_tokens)) return fit;
  if (wishes.context_chosen || fitting == 0) {
    const int64_t one_sequence = pages_for(wishes.context_chosen ? wishes.context_tokens : 1) * costs.page_bytes;
    return Error{
        ErrorKind::kInvalidArgument,
        "the KV cache does not hold one sequence",
        "kv-cache-bytes",
        std::to_string(std::min(wishes.kv_cache_bytes, room)),
        fmt::format("at least {} for {} tokens", one_sequence, wishes.context_chosen ? wishes.context_tokens : 1),
        "raise --kv-cache-bytes or lower --context-length"};
  }
  fit.context_tokens = static_cast<int32_t>(fitting * costs.page_tokens);
  fit.changes.push_back(fmt::format("context-length {} -> {}: a KV cache of {} holds no more, at {} bytes a token",
                                    wishes.context_tokens, fit.context_tokens, readable(fitting * costs.page_bytes),
                                    costs.page_bytes / costs.page_tokens));
  return fit;
}

int64_t Ledger::total() const {
  int64_t sum = 0;
  for (const LedgerLine& line : lines) sum += line.bytes;
  return sum;
}

std::vector<std::string> Ledger::table() const {
  std::vector<std::string> text;
  const auto row = [&](const std::string& what, int64_t bytes, const std::string& detail) {
    text.push_back(fmt::format("{:<28} {:>12}  {}", what, readable(bytes), detail));
  };
  for (const LedgerLine& line : lines) row(line.what, line.bytes, line.detail);
  row("all", total(), "");
  row("allowed", allowed_bytes, allowed_detail);
  for (const std::string& change : changes) text.push_back("changed to fit: " + change);
  return text;
}

}  // namespace assay::engine

#include "engine/sizing.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "engine/checkpoint_copy.h"

namespace assay::engine {
namespace {

constexpr int64_t kLogitsBytes = int64_t{64} << 20;  // of the logits of one step, at most
constexpr int32_t kMinStepAdjustments = 1 << 16;     // so that many rows of a small vocabulary fit in a step

void set_sequences(EngineLimits& limits, int32_t sequences) {
  limits.max_step_rows = std::min(sequences, limits.max_step_tokens);
  const int64_t logit_rows = kLogitsBytes / (limits.vocab_size * static_cast<int64_t>(sizeof(float)));
  limits.max_step_outputs = static_cast<int32_t>(
      std::clamp<int64_t>(logit_rows, limits.max_step_rows, std::max(limits.max_step_tokens, limits.max_step_rows)));
}

EngineLimits wanted_limits(const EngineParts& parts, const LoadOptions& options) {
  EngineLimits limits;
  limits.vocab_size = static_cast<int32_t>(parts.config.vocab_size);
  limits.max_step_tokens = options.max_step_tokens;
  limits.max_step_adjustments = std::max(limits.vocab_size, kMinStepAdjustments);
  limits.page_tokens = kPageTokens;
  // Where the device runs ahead, the host prepares a step while another runs.
  limits.max_in_flight = parts.link->runs_ahead() ? 2 : 1;
  limits.context_tokens = static_cast<int32_t>(parts.config.max_positions);
  if (options.context_tokens > 0) limits.context_tokens = options.context_tokens;
  set_sequences(limits, options.max_sequences);
  return limits;
}

void set_allowed(Ledger& ledger, const MemoryWishes& wishes, device::Backend backend) {
  ledger.allowed_bytes = static_cast<int64_t>(static_cast<double>(wishes.memory_bytes) * wishes.utilization);
  ledger.allowed_detail = fmt::format("{:.0f}% of {:.1f} GB of {}", 100 * wishes.utilization,
                                      static_cast<double>(wishes.memory_bytes) / 1e9,
                                      backend == device::Backend::kCpu ? "RAM" : "GPU memory");
}

}  // namespace

Result<void> size_parts(EngineParts& parts, const LoadOptions& options) {
  EngineLimits& limits = parts.limits;
  limits = wanted_limits(parts, options);
  ASSAY_ASSIGN(const PackingList weights, packing_list(parts));
  const device::DeviceCaps& caps = parts.device->caps();
  const MemoryWishes wishes{.memory_bytes = static_cast<int64_t>(caps.memory_bytes),
                            .utilization = options.memory_utilization,
                            .kv_cache_bytes = options.kv_cache_bytes,
                            .context_tokens = limits.context_tokens,
                            .context_chosen = options.context_tokens > 0,
                            .sequences = options.max_sequences};
  const int64_t fixed_bytes =
      total_bytes(parts.checkpoint_copies) + weights.bytes() + step_bytes(parts, options).total();
  const MemoryCosts costs{.fixed_bytes = fixed_bytes,
                          .page_bytes = page_bytes(parts, options),
                          .page_tokens = kPageTokens,
                          .slots_per_sequence = 1 + limits.max_in_flight,
                          .slot_bytes = slot_bytes(parts, options)};
  ASSAY_ASSIGN(MemoryFit fit, fit_memory(wishes, costs));
  set_sequences(limits, fit.sequences);
  limits.context_tokens = fit.context_tokens;
  limits.page_count = fit.page_count;
  limits.state_slots = fit.state_slots;
  Ledger& ledger = parts.summary.ledger;
  set_allowed(ledger, wishes, caps.backend);
  ledger.changes = std::move(fit.changes);
  write_ledger(parts, options, weights);
  return {};
}

Result<PackingList> packing_list(const EngineParts& parts) {
  PackingList list(*parts.weights);
  ops::Selector dry = *parts.selector;  // what is asked here is no choice yet
  ops::MakeContext context{parts.device->caps(), list, dry};
  ASSAY_ASSIGN([[maybe_unused]] const auto forward, parts.model->plan(largest_bucket(parts.limits), context));
  return list;
}

void write_ledger(EngineParts& parts, const LoadOptions& options, const PackingList& weights) {
  const EngineLimits& limits = parts.limits;
  const StepBytes step = step_bytes(parts, options);
  std::vector<LedgerLine>& lines = parts.summary.ledger.lines;
  lines.clear();
  if (parts.checkpoint != nullptr) {
    lines.push_back(
        {"checkpoint", total_bytes(parts.checkpoint_copies),
         parts.checkpoint_copies.empty()
             ? fmt::format("mapped: {:.1f} MB of files", static_cast<double>(parts.checkpoint->total_bytes()) / 1e6)
             : "its files, in memory"});
  }
  for (const PackingList::Total& total : weights.totals()) {
    lines.push_back(
        {fmt::format("weights as {}", total.layout), total.bytes, fmt::format("{} matrices", total.weights)});
  }
  lines.push_back({"KV cache", page_bytes(parts, options) * limits.page_count,
                   fmt::format("{} pages of {} tokens: {} tokens, {} a request at most", limits.page_count, kPageTokens,
                               int64_t{limits.page_count} * kPageTokens, limits.context_tokens)});
  lines.push_back(
      {"recurrent state", slot_bytes(parts, options) * limits.state_slots,
       fmt::format("{} slots, {} for each request that runs", limits.state_slots, 1 + limits.max_in_flight)});
  lines.push_back({"workspace of a step", step.workspace, fmt::format("{} tokens", limits.max_step_tokens)});
  lines.push_back({"logits", step.logits, fmt::format("{} rows", limits.max_step_outputs)});
  lines.push_back({"sampling", step.sampling, ""});
  lines.push_back({"ids, positions, page tables", step.arrays, ""});
}

StepBytes step_bytes(const EngineParts& parts, const LoadOptions& options) {
  const EngineLimits& limits = parts.limits;
  const ops::Bucket bucket = largest_bucket(limits);
  ops::Selector dry = *parts.selector;
  ops::MakeContext context{parts.device->caps(), *parts.weights, dry};
  const size_t workspace =
      std::max({parts.model->workspace_bytes(bucket, context),
                dry.workspace_bytes<ops::SampleOp>(sample_desc(parts, options), bucket, context), size_t{256}});
  const int64_t outputs = limits.max_step_outputs;
  StepBytes bytes;
  bytes.workspace = static_cast<int64_t>(workspace);
  bytes.logits = outputs * limits.vocab_size * static_cast<int64_t>(sizeof(float));
  bytes.sampling = outputs * static_cast<int64_t>(sizeof(ops::SampleParams) + sizeof(ops::SampleResult)) +
                   limits.max_step_adjustments * static_cast<int64_t>(sizeof(ops::LogitAdjustment));
  bytes.arrays = StepArrays::bytes(limits) + sentinel_bytes(parts);
  return bytes;
}

int64_t sentinel_bytes(const EngineParts& parts) {
  return static_cast<int64_t>((parts.model->state_shape().layers.size() + 1) * sizeof(uint32_t));
}

int64_t page_bytes(const EngineParts& parts, const LoadOptions& options) {
  return StateMemory::page_bytes(parts.model->state_shape(), kPageTokens, options.compute);
}

int64_t slot_bytes(const EngineParts& parts, const LoadOptions& options) {
  return StateMemory::slot_bytes(parts.model->state_shape(), options.compute);
}

ops::Bucket largest_bucket(const EngineLimits& limits) {
  return {limits.max_step_tokens, limits.max_step_rows, limits.max_step_outputs};
}

ops::SampleDesc sample_desc(const EngineParts& parts, const LoadOptions& options) {
  const auto vocab = static_cast<int32_t>(parts.config.vocab_size);
  return {.vocab = vocab, .real_vocab = options.real_vocab > 0 ? std::min(options.real_vocab, vocab) : vocab};
}

}  // namespace assay::engine

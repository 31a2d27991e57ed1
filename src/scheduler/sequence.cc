#include "scheduler/sequence.h"

#include <algorithm>

namespace assay::scheduler {
namespace {

int32_t generation_limit(const Request& request, const engine::EngineLimits& limits) {
  if (request.score_only) return 0;
  const int64_t prompt_tokens = static_cast<int64_t>(request.prompt.size());
  const int64_t pool_tokens = static_cast<int64_t>(limits.page_count) * limits.page_tokens;
  // Without a wish of the request the pool is a limit like the context; the last token needs no position in it.
  const int64_t room = std::min<int64_t>(limits.context_tokens, pool_tokens + 1) - prompt_tokens;
  return static_cast<int32_t>(request.max_tokens > 0 ? std::min<int64_t>(request.max_tokens, room) : room);
}

}  // namespace

std::unique_ptr<Sequence> make_sequence(uint64_t id, Request request, const engine::EngineLimits& limits) {
  auto sequence = std::make_unique<Sequence>();
  sequence->id = id;
  sequence->max_generated = generation_limit(request, limits);
  sequence->adjustments = Adjustments(request, std::min(sequence->max_generated, limits.vocab_size));
  sequence->generated.reserve(static_cast<size_t>(sequence->max_generated));
  const size_t positions = request.prompt.size() + static_cast<size_t>(sequence->max_generated);
  sequence->pages.reserve(positions / static_cast<size_t>(limits.page_tokens) + 1);
  if (request.prompt_logprobs) sequence->prompt_logprobs.reserve(request.prompt.size() - 1);
  sequence->request = std::move(request);
  return sequence;
}

}  // namespace assay::scheduler

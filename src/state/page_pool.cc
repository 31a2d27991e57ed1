#include "state/page_pool.h"

#include "base/check.h"

namespace assay::state {

PagePool::PagePool(int32_t page_count, int32_t page_tokens) : pool_("page", page_count), page_tokens_(page_tokens) {
  CHECK(page_tokens > 0, "pages of {} tokens", page_tokens);
}

int32_t PagePool::pages_for(int64_t positions) const {
  return static_cast<int32_t>((positions + page_tokens_ - 1) / page_tokens_);
}

bool PagePool::allocate(int32_t count, std::vector<int32_t>& pages) {
  CHECK(count >= 0, "{} pages asked for", count);
  if (count > free()) return false;
  for (int32_t i = 0; i < count; ++i) pages.push_back(pool_.take());
  return true;
}

void PagePool::share(std::span<const int32_t> pages) {
  for (const int32_t page : pages) pool_.share(page);
}

void PagePool::release(std::span<const int32_t> pages) {
  for (const int32_t page : pages) pool_.release(page);
}

}  // namespace assay::state

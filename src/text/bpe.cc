#include "text/bpe.h"

#include <queue>

namespace assay::text {
namespace {

// Below this many symbols scanning all pairs for each merge is faster than a heap.
constexpr size_t kShortWord = 32;

}  // namespace

void Bpe::add_merge(int32_t left, int32_t right, int32_t merged) { merges_.set(left, right, {next_rank_++, merged}); }

size_t Bpe::merge_short(std::span<int32_t> ids) const {
  size_t count = ids.size();
  const Merge* pairs[kShortWord];  // pairs[i]: the merge of ids[i] and ids[i + 1]
  for (size_t i = 0; i + 1 < count; ++i) pairs[i] = merges_.find(ids[i], ids[i + 1]);
  while (count > 1) {
    size_t best = count;
    for (size_t i = 0; i + 1 < count; ++i) {
      if (pairs[i] != nullptr && (best == count || pairs[i]->rank < pairs[best]->rank)) best = i;
    }
    if (best == count) break;
    ids[best] = pairs[best]->merged;
    for (size_t i = best + 1; i + 1 < count; ++i) {
      ids[i] = ids[i + 1];
      pairs[i] = pairs[i + 1];
    }
    --count;
    if (best > 0) pairs[best - 1] = merges_.find(ids[best - 1], ids[best]);
    if (best + 1 < count) pairs[best] = merges_.find(ids[best], ids[best + 1]);
  }
  return count;
}

size_t Bpe::merge_long(std::span<int32_t> ids) const {
  struct Symbol {
    int32_t id;  // -1: merged into the symbol before
    int32_t previous, next;
  };
  struct Candidate {
    uint32_t rank;
    int32_t at, left, right;  // the pair of symbols it was made for: stale if they changed
    bool operator<(const Candidate& other) const { return rank != other.rank ? rank > other.rank : at > other.at; }
  };
  const auto count = static_cast<int32_t>(ids.size());
  std::vector<Symbol> symbols(ids.size());
  std::priority_queue<Candidate> queue;
  const auto offer = [&](int32_t at) {
    if (at < 0 || symbols[at].next == count) return;
    const int32_t left = symbols[at].id, right = symbols[symbols[at].next].id;
    if (const Merge* merge = merges_.find(left, right)) queue.push({merge->rank, at, left, right});
  };
  for (int32_t i = 0; i < count; ++i) symbols[i] = {ids[i], i - 1, i + 1};
  for (int32_t i = 0; i < count; ++i) offer(i);
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    Symbol& symbol = symbols[top.at];
    if (symbol.id != top.left || symbol.next == count || symbols[symbol.next].id != top.right) continue;
    Symbol& gone = symbols[symbol.next];
    symbol.id = merges_.find(top.left, top.right)->merged;
    symbol.next = gone.next;
    gone.id = -1;
    if (symbol.next != count) symbols[symbol.next].previous = top.at;
    offer(symbol.previous);
    offer(top.at);
  }
  size_t kept = 0;
  for (int32_t i = 0; i < count; i = symbols[i].next) ids[kept++] = symbols[i].id;
  return kept;
}

void Bpe::encode(std::string_view word, std::vector<int32_t>& out) const {
  if (!whole_words_.empty()) {
    if (const auto it = whole_words_.find(std::string(word)); it != whole_words_.end()) {
      out.push_back(it->second);
      return;
    }
  }
  const size_t begin = out.size();
  for (const char c : word) out.push_back(byte_ids_[static_cast<uint8_t>(c)]);
  const std::span<int32_t> ids = std::span(out).subspan(begin);
  out.resize(begin + (ids.size() <= kShortWord ? merge_short(ids) : merge_long(ids)));
}

}  // namespace assay::text

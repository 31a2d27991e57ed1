// CaseBatch: sequences of a step for the cases of ops that have them, with their arrays on a bench.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <numeric>
#include <vector>

#include "ops/cases.h"

namespace assay::ops {

inline constexpr int32_t kCasePageTokens = 64;

struct CaseSequence {
  int32_t position = 0;  // of the first token
  int32_t tokens = 1;
  int32_t state_read = -1;
  int32_t state_write = -1;
};

struct CaseBatch {
  std::vector<CaseSequence> sequences;
  std::vector<int32_t> query_start{0}, positions, sequence_of, page_table, state_read, state_write;
  int32_t stride = 0;
  int32_t page_count = 0;  // of the pool: more than are used, and those in no order

  // Slots: sequence s reads 2 s or, if fresh, nothing, and writes 2 s + 1. Pages: of sequences past 500 tokens the
  // first pages, 60 at most, are `prefix_pages` of the pool in turn, the same of all of them, as where they share a
  // prefix: pools stay small. No tile or stride of a row is a multiple of 13, so that a wrong page still is another
  // page.
  CaseBatch(std::vector<CaseSequence> list, CaseRandom& random, int32_t prefix_pages = 13)
      : sequences(std::move(list)) {
    int32_t pages = 0;
    for (const CaseSequence& s : sequences) {
      stride = std::max(stride, used_pages(s));
      pages += used_pages(s) - shared_pages(s);
    }
    const bool shared = std::any_of(sequences.begin(), sequences.end(), [](const auto& s) { return shared_pages(s); });
    page_count = pages + (shared ? prefix_pages : 0) + 3;
    std::vector<int32_t> order(static_cast<size_t>(page_count));
    std::iota(order.begin(), order.end(), 0);
    for (size_t i = order.size(); i > 1; --i) {
      std::swap(order[i - 1], order[static_cast<size_t>(random.below(static_cast<int64_t>(i)))]);
    }
    std::vector<int32_t> prefix;
    for (int32_t p = 0; shared && p < prefix_pages; ++p) {
      prefix.push_back(order.back());
      order.pop_back();
    }
    for (size_t s = 0; s < sequences.size(); ++s) {
      CaseSequence& sequence = sequences[s];
      sequence.state_read = sequence.position == 0 ? -1 : static_cast<int32_t>(2 * s);
      sequence.state_write = static_cast<int32_t>(2 * s + 1);
      for (int32_t i = 0; i < sequence.tokens; ++i) {
        positions.push_back(sequence.position + i);
        sequence_of.push_back(static_cast<int32_t>(s));
      }
      query_start.push_back(static_cast<int32_t>(positions.size()));
      const int32_t used = used_pages(sequence);
      for (int32_t p = 0; p < stride; ++p) {
        const bool own = p >= shared_pages(sequence) && p < used;
        page_table.push_back(p >= used ? -1 : own ? order.back() : prefix[static_cast<size_t>(p % prefix_pages)]);
        if (own) order.pop_back();
      }
      state_read.push_back(sequence.state_read);
      state_write.push_back(sequence.state_write);
    }
  }

  static int32_t used_pages(const CaseSequence& s) {
    return (s.position + s.tokens + kCasePageTokens - 1) / kCasePageTokens;
  }
  static int32_t shared_pages(const CaseSequence& s) {
    constexpr int32_t kPrefix = 60, kLong = 500;
    return s.position >= kLong ? std::min(kPrefix, s.position / kCasePageTokens - 1) : 0;
  }
  int32_t tokens() const { return static_cast<int32_t>(positions.size()); }
  int32_t slots() const { return 2 * static_cast<int32_t>(sequences.size()) + 1; }
  Bucket bucket() const { return {tokens(), static_cast<int32_t>(sequences.size()), tokens()}; }
  int64_t page(int64_t token, int32_t position) const {
    return page_table[static_cast<size_t>(int64_t{sequence_of[static_cast<size_t>(token)]} * stride +
                                          position / kCasePageTokens)];
  }

  // decode: sequences of one token at the front that count as decode rows.
  BatchView place(Bench& bench, int32_t decode) const {
    BatchView view;
    view.tokens = {decode, tokens(), nullptr};
    view.sequences = static_cast<int32_t>(sequences.size());
    const auto put = [&](const char* name, const std::vector<int32_t>& values) {
      return bench.pointer<const int32_t>(bench.add_array<int32_t>(name, values));
    };
    view.query_start = put("query_start", query_start);
    view.positions = put("positions", positions);
    view.sequence_of = put("sequence_of", sequence_of);
    view.page_table = put("page_table", page_table);
    view.page_table_stride = stride;
    view.state_read = put("state_read", state_read);
    view.state_write = put("state_write", state_write);
    return view;
  }
};

// What a batch holds, where an op has inputs of that kind.
enum class CaseValues : uint8_t {
  kUsual,
  kNotFinite,   // of the last sequence, something that the sentinel must flag, or must not, by `variant`
  kCancelling,  // little is left of two large terms
  kVanishing,   // so small that an epsilon shows
};

// A batch to try: its sequences, of which the first `decode` are decode rows.
struct CaseSteps {
  std::string name;
  std::vector<CaseSequence> sequences;
  int32_t decode = 0;
  CaseValues values = CaseValues::kUsual;
  int32_t variant = 0;
};

// Decode rows at page edges, prompts from the start and from a cut on, both together. Within the bucket.
// `unusual`: the kinds of values that the op has inputs of; `variants`: of kNotFinite.
inline std::vector<CaseSteps> case_steps(const CaseContext& context, bool long_context,
                                         std::initializer_list<CaseValues> unusual, int32_t variants = 3) {
  const auto decode_at = [](std::initializer_list<int32_t> positions) {
    CaseSteps steps{fmt::format("decode of {}", positions.size()), {}, static_cast<int32_t>(positions.size())};
    for (int32_t position : positions) steps.sequences.push_back({position, 1});
    return steps;
  };
  std::vector<CaseSteps> all{decode_at({0}), decode_at({65}), {"prompt of 3", {{0, 3}}, 0}};
  const CaseSteps mixed{"decode and prompts", {{7, 1}, {190, 1}, {0, 7}, {128, 31}, {0, 1}}, 2};
  if (context.effort == Effort::kWeights) {
    all.push_back(mixed);
  } else if (context.effort != Effort::kLight) {
    all.push_back({"prompt of 17", {{0, 17}}, 0});
    all.push_back(decode_at({1, 2, 62, 63, 64, 127, 128, 200}));
    all.push_back({"prompt of 65", {{0, 65}}, 0});
    all.push_back({"cut at 64", {{64, 33}}, 0});
    all.push_back(mixed);
    if (long_context) {
      all.push_back({"past 4096", {{4095, 1}, {4096, 1}, {4230, 4}}, 2});
      all.push_back(decode_at({530, 1100, 2300}));
      all.push_back(decode_at({4300}));
    }
    all.push_back({"prompts of which two begin within a page", {{37, 40}, {100, 5}, {0, 257}}, 0});
    all.push_back({"places of sequences that are not there", {{5, 1}, {64, 6}, {0, 0}, {0, 0}}, 1});
    for (const CaseValues values : unusual) {
      switch (values) {
        case CaseValues::kUsual:
          break;
        case CaseValues::kNotFinite:
          for (int32_t variant = 0; variant < variants; ++variant) {
            all.push_back({fmt::format("not finite, {}", variant), {{3, 1}, {64, 2}, {0, 9}}, 1, values, variant});
          }
          break;
        case CaseValues::kCancelling: {
          CaseSteps steps{"accumulator", {}, 8, values};
          for (int32_t s = 0; s < 8; ++s) steps.sequences.push_back({s % 2 == 0 ? 2 : 1, 1});
          all.push_back(std::move(steps));
          break;
        }
        case CaseValues::kVanishing:
          all.push_back({"vanishing", {{0, 7}}, 0, values});
          break;
      }
    }
  }
  if (context.effort == Effort::kFull) {
    all.push_back({"prompt of 2", {{0, 2}}, 0});
    all.push_back({"prompt of 4", {{0, 4}}, 0});
    all.push_back({"prompt of 63", {{0, 63}}, 0});
    all.push_back({"prompt of 64", {{0, 64}}, 0});
    all.push_back({"prompt of 127", {{0, 127}}, 0});
    all.push_back({"prompt of 257", {{0, 257}}, 0});
    all.push_back({"cut at 256", {{256, 128}}, 0});
    CaseSteps many{"decode of 33", {}, 33};
    for (int32_t s = 0; s < 33; ++s) many.sequences.push_back({(s * 37) % 150, 1});
    all.push_back(std::move(many));
  }
  std::vector<CaseSteps> fitting;
  for (CaseSteps& steps : all) {
    int32_t tokens = 0;
    for (const CaseSequence& s : steps.sequences) tokens += s.tokens;
    if (tokens <= context.bucket.tokens && static_cast<int32_t>(steps.sequences.size()) <= context.bucket.sequences) {
      fitting.push_back(std::move(steps));
    }
  }
  return fitting;
}

// What nobody may read: NaN and 3.4e38 in turn.
inline double case_poison(int64_t index) { return index % 2 == 0 ? std::nan("") : 3.38953139e38; }

}  // namespace assay::ops

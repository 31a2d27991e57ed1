#include "engine/ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace assay::engine {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// 1000 bytes of weights; a page of 64 tokens takes 128, a slot 10.
constexpr MemoryCosts kCosts{.fixed_bytes = 1000, .page_bytes = 128, .page_tokens = 64, .slot_bytes = 10};
constexpr MemoryWishes kWishes{.memory_bytes = 20'000,
                               .utilization = 0.5,
                               .kv_cache_bytes = 4096,
                               .context_tokens = 256,
                               .context_chosen = true,
                               .sequences = 8};

TEST(FitMemory, GivesWhatIsAskedForWhereItFits) {
  const MemoryFit fit = *fit_memory(kWishes, kCosts);
  EXPECT_EQ(fit.context_tokens, 256);
  EXPECT_EQ(fit.sequences, 8);
  EXPECT_EQ(fit.page_count, 32);
  EXPECT_EQ(fit.state_slots, 16);
  EXPECT_THAT(fit.changes, IsEmpty());
}

TEST(FitMemory, TakesFewerPagesThanFullContextsWithoutAWord) {
  MemoryWishes wishes = kWishes;
  wishes.kv_cache_bytes = 1000;
  const MemoryFit fit = *fit_memory(wishes, kCosts);
  EXPECT_EQ(fit.page_count, 7);
  EXPECT_EQ(fit.context_tokens, 256);
  EXPECT_THAT(fit.changes, IsEmpty());
}

TEST(FitMemory, LowersWhatMemoryIsTooSmallForAndSaysSo) {
  MemoryWishes wishes = kWishes;
  wishes.memory_bytes = 3280;  // 1640 allowed, 640 beside the weights
  wishes.sequences = 20;
  wishes.context_chosen = false;
  const MemoryFit fit = *fit_memory(wishes, kCosts);
  EXPECT_EQ(fit.sequences, 16);
  EXPECT_EQ(fit.state_slots, 32);
  EXPECT_EQ(fit.page_count, 2);
  EXPECT_EQ(fit.context_tokens, 128);
  EXPECT_THAT(fit.changes,
              ElementsAre("max-running-requests 20 -> 16: each takes 20 B of state, and 320 B are left for it",
                          "kv-cache-bytes 4096 -> 256: no more is left beside weights, workspace and state",
                          "context-length 256 -> 128: a KV cache of 256 B holds no more, at 2 bytes a token"));
}

TEST(FitMemory, RefusesWhatIsImpossible) {
  MemoryWishes wishes = kWishes;
  wishes.memory_bytes = 2000;
  const Error too_large = fit_memory(wishes, kCosts).error();
  EXPECT_EQ(too_large.kind, ErrorKind::kResource);
  EXPECT_THAT(too_large.message(), HasSubstr("got 1000 B allowed (50% of 2000 B), wanted 1148 B for the weights"));

  wishes = kWishes;
  wishes.kv_cache_bytes = 511;
  const Error no_context = fit_memory(wishes, kCosts).error();
  EXPECT_EQ(no_context.kind, ErrorKind::kInvalidArgument);
  EXPECT_EQ(no_context.got, "511");
  EXPECT_EQ(no_context.wanted, "at least 512 for 256 tokens");

  wishes.kv_cache_bytes = 127;
  wishes.context_chosen = false;
  EXPECT_EQ(fit_memory(wishes, kCosts).error().wanted, "at least 128 for 1 tokens");
}

TEST(FitMemory, TakesModelsWithoutKvOrWithoutState) {
  MemoryCosts costs = kCosts;
  costs.slot_bytes = 0;
  EXPECT_EQ(fit_memory(kWishes, costs)->state_slots, 0);
  costs = kCosts;
  costs.page_bytes = 0;
  EXPECT_EQ(fit_memory(kWishes, costs)->page_count, 32);
}

TEST(Ledger, AddsUpAndPrints) {
  Ledger ledger;
  ledger.lines = {{"weights", 1'500'000, "layout"}, {"KV cache", 2'000'000, ""}};
  ledger.allowed_bytes = 4'000'000;
  ledger.allowed_detail = "90% of RAM";
  ledger.changes = {"x 2 -> 1: y"};
  EXPECT_EQ(ledger.total(), 3'500'000);
  const std::vector<std::string> table = ledger.table();
  ASSERT_EQ(table.size(), 5u);
  EXPECT_EQ(table[0], "weights                         1500.0 kB  layout");
  EXPECT_EQ(table[2], "all                             3500.0 kB  ");
  EXPECT_EQ(table[4], "changed to fit: x 2 -> 1: y");
}

}  // namespace
}  // namespace assay::engine

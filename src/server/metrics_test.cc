#include "server/metrics.h"

#include <gtest/gtest.h>

namespace assay::server {
namespace {

TEST(Metrics, TextHoldsLoopStatsAndObservations) {
  Metrics metrics("m");
  metrics.observe_first_token(0.03);
  metrics.observe_inter_token(0.004);
  metrics.observe_finished(Outcome::kLength, 0.2, 10, 20);
  metrics.count_response(429);
  scheduler::LoopStats stats;
  stats.running = 3;
  stats.waiting = 2;
  stats.pages_used = 5;
  stats.pages_total = 20;
  stats.slots_used = 4;
  stats.generation_tokens_total = 123;
  stats.requests_finished[static_cast<int>(scheduler::FinishReason::kNumericalError)] = 1;
  const std::string text = metrics.text(&stats);
  for (const char* line :
       {"assay:num_requests_running{model_name=\"m\"} 3\n", "assay:num_requests_waiting{model_name=\"m\"} 2\n",
        "assay:kv_cache_usage_perc{model_name=\"m\"} 0.25\n", "assay:kv_pages_used{model_name=\"m\"} 5\n",
        "assay:state_slots_used{model_name=\"m\"} 4\n", "assay:generation_tokens_total{model_name=\"m\"} 123\n",
        "assay:corrupted_requests_total{model_name=\"m\"} 1\n", "# TYPE assay:time_to_first_token_seconds histogram\n",
        "assay:time_to_first_token_seconds_bucket{model_name=\"m\",le=\"0.02\"} 0\n",
        "assay:time_to_first_token_seconds_bucket{model_name=\"m\",le=\"0.04\"} 1\n",
        "assay:inter_token_latency_seconds_count{model_name=\"m\"} 1\n",
        "assay:e2e_request_latency_seconds_sum{model_name=\"m\"} 0.2\n",
        "assay:request_prompt_tokens_sum{model_name=\"m\"} 10\n",
        "assay:request_generation_tokens_sum{model_name=\"m\"} 20\n",
        "finished_reason=\"length\",model_name=\"m\"} 1\n", "finished_reason=\"stop\",model_name=\"m\"} 0\n",
        "status=\"429\"} 1\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
  }
}

TEST(Metrics, WithoutAModelAllSeriesAreThere) {
  const std::string text = Metrics("m").text(nullptr);
  EXPECT_NE(text.find("assay:num_requests_running{model_name=\"m\"} 0\n"), std::string::npos) << text;
  EXPECT_NE(text.find("assay:kv_cache_usage_perc{model_name=\"m\"} 0\n"), std::string::npos) << text;
}

}  // namespace
}  // namespace assay::server

#include "server/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

namespace assay::server {

namespace {

using Buckets = prometheus::Histogram::BucketBoundaries;

const Buckets& first_token_buckets() {
  static const Buckets buckets = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5,
                                  0.75,  1,     2.5,  5,    7.5,  10,   20,   40,  80,   160};
  return buckets;
}

const Buckets& inter_token_buckets() {
  static const Buckets buckets = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15,
                                  0.2,   0.3,    0.4,   0.5,  0.75,  1,    2.5,   5,   10};
  return buckets;
}

const Buckets& request_buckets() {
  static const Buckets buckets = {0.05, 0.1, 0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,
                                  10,   15,  20,  30,  40,  60, 120, 240, 480, 960};
  return buckets;
}

const Buckets& token_count_buckets() {
  static const Buckets buckets = {1,    2,    5,    10,    20,    50,    100,    200,   500,
                                  1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000};
  return buckets;
}

const char* outcome_name(Outcome outcome) {
  switch (outcome) {
    case Outcome::kStop:
      return "stop";
    case Outcome::kLength:
      return "length";
    case Outcome::kAbort:
      return "abort";
    case Outcome::kError:
      return "error";
  }
  return "?";
}

prometheus::MetricFamily sample(const std::string& model, const char* name, const char* help,
                                prometheus::MetricType type, double value) {
  prometheus::ClientMetric metric;
  metric.label.push_back({"model_name", model});
  (type == prometheus::MetricType::Gauge ? metric.gauge.value : metric.counter.value) = value;
  return {std::string("assay:") + name, help, type, {std::move(metric)}};
}

}  // namespace

struct Metrics::State {
  explicit State(const std::string& model) : model_name(model) {}

  prometheus::Histogram& histogram(const char* name, const char* help, const Buckets& buckets) {
    return prometheus::BuildHistogram()
        .Name(std::string("assay:") + name)
        .Help(help)
        .Register(registry)
        .Add({{"model_name", model_name}}, buckets);
  }
  prometheus::Family<prometheus::Counter>& counter(const char* name, const char* help) {
    return prometheus::BuildCounter().Name(std::string("assay:") + name).Help(help).Register(registry);
  }

  std::string model_name;
  prometheus::Registry registry;
  prometheus::Histogram& first_token = histogram(
      "time_to_first_token_seconds", "Time from a request's arrival to its first token", first_token_buckets());
  prometheus::Histogram& inter_token =
      histogram("inter_token_latency_seconds", "Time between two tokens of a request", inter_token_buckets());
  prometheus::Histogram& e2e =
      histogram("e2e_request_latency_seconds", "Time from a request's arrival to its last token", request_buckets());
  prometheus::Histogram& prompt_tokens =
      histogram("request_prompt_tokens", "Prompt tokens of a request", token_count_buckets());
  prometheus::Histogram& generation_tokens =
      histogram("request_generation_tokens", "Generated tokens of a request", token_count_buckets());
  prometheus::Family<prometheus::Counter>& success =
      counter("request_success_total", "Requests that were accepted and are over, by reason");
  prometheus::Family<prometheus::Counter>& responses = counter("http_responses_total", "HTTP responses by status");
};

Metrics::Metrics(const std::string& model_name) : state_(std::make_unique<State>(model_name)) {
  for (const Outcome outcome : {Outcome::kStop, Outcome::kLength, Outcome::kAbort, Outcome::kError}) {
    state_->success.Add({{"model_name", model_name}, {"finished_reason", outcome_name(outcome)}});
  }
}
Metrics::~Metrics() = default;

void Metrics::observe_first_token(double seconds) { state_->first_token.Observe(seconds); }
void Metrics::observe_inter_token(double seconds) { state_->inter_token.Observe(seconds); }

void Metrics::observe_finished(Outcome outcome, double seconds, int32_t prompt_tokens, int32_t generated_tokens) {
  state_->success.Add({{"model_name", state_->model_name}, {"finished_reason", outcome_name(outcome)}}).Increment();
  state_->e2e.Observe(seconds);
  state_->prompt_tokens.Observe(prompt_tokens);
  state_->generation_tokens.Observe(generated_tokens);
}

void Metrics::count_response(int status) {
  state_->responses.Add({{"model_name", state_->model_name}, {"status", std::to_string(status)}}).Increment();
}

std::string Metrics::text(const scheduler::LoopStats* loop_stats) const {
  const scheduler::LoopStats stats = loop_stats ? *loop_stats : scheduler::LoopStats{};
  std::vector<prometheus::MetricFamily> families;
  const auto gauge = [&](const char* name, const char* help, double value) {
    families.push_back(sample(state_->model_name, name, help, prometheus::MetricType::Gauge, value));
  };
  const auto counter = [&](const char* name, const char* help, double value) {
    families.push_back(sample(state_->model_name, name, help, prometheus::MetricType::Counter, value));
  };
  gauge("num_requests_running", "Requests that hold pages and state", stats.running);
  gauge("num_requests_waiting", "Requests in the queue", stats.waiting);
  gauge("kv_cache_usage_perc", "Used share of the KV pages, 1 is all",
        stats.pages_total > 0 ? static_cast<double>(stats.pages_used) / stats.pages_total : 0);
  gauge("kv_pages_used", "KV pages that sequences hold", stats.pages_used);
  gauge("kv_pages_total", "KV pages", stats.pages_total);
  gauge("state_slots_used", "Recurrent-state slots that sequences hold", stats.slots_used);
  gauge("state_slots_total", "Recurrent-state slots", stats.slots_total);
  counter("requests_total", "Requests accepted", static_cast<double>(stats.requests_total));
  counter("requests_rejected_total", "Requests refused by the scheduler", static_cast<double>(stats.requests_rejected));
  counter("prompt_tokens_total", "Prompt tokens computed", static_cast<double>(stats.prompt_tokens_total));
  counter("generation_tokens_total", "Tokens generated", static_cast<double>(stats.generation_tokens_total));
  counter("num_preemptions_total", "Preemptions", static_cast<double>(stats.preemptions_total));
  counter("num_steps_total", "Engine steps", static_cast<double>(stats.steps_total));
  counter("step_seconds_total", "Time within engine steps", static_cast<double>(stats.step_us_total) * 1e-6);
  counter("corrupted_requests_total", "Requests ended because the model's numbers were not finite",
          static_cast<double>(stats.requests_finished[static_cast<int>(scheduler::FinishReason::kNumericalError)]));
  counter("non_finite_steps_total", "Steps whose numbers were not finite",
          static_cast<double>(stats.non_finite_steps_total));
  for (auto& family : state_->registry.Collect()) families.push_back(std::move(family));
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace assay::server

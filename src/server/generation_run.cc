#include "server/generation_run.h"

#include <algorithm>
#include <chrono>
#include <random>

#include "base/clock.h"
#include "base/log.h"

namespace assay::server {

using scheduler::FinishReason;

namespace {

constexpr size_t kMaxLoggedFields = 1000;
constexpr size_t kMaxLoggedFieldBytes = 64;

uint64_t random_seed() {
  std::random_device random;
  return static_cast<uint64_t>(random()) << 32 | random();
}

int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

ApiError context_exceeded(const char* field, std::string message) {
  ApiError error;
  error.message = std::move(message);
  error.param = field;
  error.code = "context_length_exceeded";
  return error;
}

ApiError numerical_error() {
  ApiError error;
  error.status = 500;
  error.type = "numerical_error";
  error.message = "The model's numbers were not finite; the request was ended";
  error.code = "numerical_error";
  error.retryable = true;
  return error;
}

// Trying again would take as long.
ApiError timed_out(int64_t timeout_ms) {
  ApiError error;
  error.status = 504;
  error.type = "timeout_error";
  error.message = fmt::format("The request was not done within this server's limit of {} s",
                              static_cast<double>(timeout_ms) * 1e-3);
  error.code = "request_timeout";
  error.final = true;
  return error;
}

double seconds(int64_t microseconds) { return static_cast<double>(microseconds) * 1e-6; }

}  // namespace

std::string random_hex() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}", random(), random(), random());
}

MaybeError check_model_name(const ServerOptions& options, const std::string& name) {
  const bool known = name.empty() || name == options.model_id ||
                     std::find(options.aliases.begin(), options.aliases.end(), name) != options.aliases.end();
  if (known) return {};
  ApiError error;
  error.status = 404;
  error.type = "not_found_error";
  error.message = fmt::format("The model {} does not exist; this server has {}", name, options.model_id);
  error.param = "model";
  error.code = "model_not_found";
  return error;
}

void IgnoredFields::note(const std::string& name) {
  {
    const std::lock_guard lock(mutex_);
    if (seen_.size() >= kMaxLoggedFields || name.size() > kMaxLoggedFieldBytes || !seen_.insert(name).second) return;
  }
  std::string shown = name;
  std::replace_if(
      shown.begin(), shown.end(), [](unsigned char c) { return c < 0x20 || c >= 0x7f; }, '?');
  log_info("requests: the field {} has no effect here", shown);
}

// What the loop calls for one choice. Delivery thread: hands over and returns.
class GenerationRun::Sink : public scheduler::RequestSink {
 public:
  Sink(std::shared_ptr<GenerationRun> run, int32_t slot) : run_(std::move(run)), slot_(slot) {}

  void on_prompt_logprobs(std::span<const ops::SampleResult> results) override {
    const std::lock_guard lock(run_->mutex_);
    run_->prompt_arrivals_.emplace_back(slot_, std::vector(results.begin(), results.end()));
  }
  void on_token(const scheduler::TokenEvent& event) override {
    {
      const std::lock_guard lock(run_->mutex_);
      run_->arrivals_.push_back({slot_, event.result, now_us()});
    }
    run_->notify();
  }
  void on_finish(const scheduler::FinishEvent& event) override {
    {
      const std::lock_guard lock(run_->mutex_);
      run_->finishes_.emplace_back(slot_, event.reason);
    }
    run_->notify();
  }

 private:
  std::shared_ptr<GenerationRun> run_;
  int32_t slot_;
};

GenerationRun::GenerationRun(RunContext& context, std::shared_ptr<const Model> model,
                             std::shared_ptr<ResponseWriter> writer, const char* id_prefix)
    : context_(context),
      model_(std::move(model)),
      outbox_(context.outbox),
      writer_(std::move(writer)),
      arrived_us_(now_us()) {
  head_.id = id_prefix + random_hex();
  head_.created = unix_seconds();
  head_.model = context.options.model_id;
  head_.fingerprint = context.options.system_fingerprint;
}

void GenerationRun::start(std::string body) {
  writer_->on_disconnect([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->leave();
  });
  context_.post_text([self = shared_from_this(), body = std::move(body)] {
    auto refused = self->prepare(body);
    self->context_.post_io([self, refused = std::move(refused)] {
      if (refused) {
        self->refuse(*refused);
      } else {
        self->submit();
      }
    });
  });
}

MaybeError GenerationRun::prepare(const std::string& body) {
  ASSAY_FIELD(parse(body));
  ASSAY_FIELD(check_prompts());
  if (prompts_.size() * static_cast<size_t>(choices_per_prompt()) > kMaxAllChoices) {
    return invalid_field("n", fmt::format("n: {} prompts with {} choices each are more than {} choices",
                                          prompts_.size(), choices_per_prompt(), kMaxAllChoices));
  }
  for (const std::string& name : options().ignored_fields) context_.ignored_fields.note(name);
  const int32_t each = choices_per_prompt();
  const std::vector<int32_t> stops = stop_tokens();
  slots_.resize(prompts_.size() * static_cast<size_t>(each));
  for (size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    slot.prompt = static_cast<int32_t>(i) / each;
    ChoiceSettings settings;
    settings.tokenizer = model_->tokenizer;
    settings.options = &options();
    settings.stop_tokens = stops;
    settings.keep_results = options().logprobs;
    add_settings(slot.prompt, settings);
    slot.text.emplace(std::move(settings));
  }
  for (const std::vector<int32_t>& prompt : prompts_) usage_.prompt_tokens += static_cast<int32_t>(prompt.size());
  return {};
}

MaybeError GenerationRun::check_prompts() const {
  for (const std::vector<int32_t>& prompt : prompts_) {
    if (prompt.empty()) return invalid_field(prompt_field_, fmt::format("{} makes an empty prompt", prompt_field_));
    const int32_t vocabulary = model_->loop->limits().vocab_size;
    const auto outside = std::find_if(prompt.begin(), prompt.end(), [&](int32_t id) { return id >= vocabulary; });
    if (outside != prompt.end()) {
      return invalid_field(prompt_field_, fmt::format("{} holds the token id {}; the vocabulary ends at {}",
                                                      prompt_field_, *outside, vocabulary - 1));
    }
    const int64_t generated = options().max_tokens == 0 ? 0 : 1;
    if (static_cast<int64_t>(prompt.size()) + generated <= model_->context_tokens) continue;
    return context_exceeded(
        prompt_field_,
        fmt::format("The model's context holds {} tokens{}; the prompt has {} tokens", model_->context_tokens,
                    generated > 0 ? ", and one must be left to generate" : "", prompt.size()));
  }
  return {};
}

std::vector<int32_t> GenerationRun::stop_tokens() const {
  std::vector<int32_t> stops = options().ignore_eos ? std::vector<int32_t>() : model_->stop_tokens;
  stops.insert(stops.end(), options().stop_token_ids.begin(), options().stop_token_ids.end());
  return stops;
}

scheduler::Request GenerationRun::engine_request(int32_t prompt, int32_t choice, uint64_t seed) const {
  const SamplingDefaults& defaults = context_.options.sampling;
  const GenerationOptions& asked = options();
  scheduler::Request request;
  request.prompt = prompts_[static_cast<size_t>(prompt)];
  const int32_t room = model_->context_tokens - static_cast<int32_t>(request.prompt.size());
  request.max_tokens = asked.max_tokens ? std::min(*asked.max_tokens, room) : 0;
  request.score_only = asked.max_tokens == 0;
  request.stop_tokens = stop_tokens();
  request.temperature = asked.temperature.value_or(defaults.do_sample ? defaults.temperature : 0.0f);
  request.top_k = asked.top_k.value_or(defaults.top_k);
  request.top_p = asked.top_p.value_or(defaults.top_p);
  request.min_p = asked.min_p.value_or(defaults.min_p);
  request.seed = seed + static_cast<uint64_t>(choice);
  request.prompt_logprobs = scores_prompt(choice);
  request.top_logprobs = asked.top_logprobs;
  if (request.prompt_logprobs) request.top_logprobs = std::max(asked.top_logprobs, asked.prompt_logprobs.value_or(0));
  request.presence_penalty = asked.presence_penalty.value_or(0);
  request.frequency_penalty = asked.frequency_penalty.value_or(0);
  request.repetition_penalty = asked.repetition_penalty.value_or(1);
  request.logit_bias = asked.logit_bias;
  request.min_tokens = asked.min_tokens;
  const int64_t timeout_ms = context_.options.request_timeout_ms;
  if (timeout_ms > 0) request.deadline_us = arrived_us_ + timeout_ms * 1000;
  return request;
}

void GenerationRun::submit() {
  if (over_) return;
  std::vector<scheduler::Submission> submissions;
  const int32_t each = choices_per_prompt();
  const uint64_t seed = options().seed ? *options().seed : random_seed();
  for (size_t i = 0; i < slots_.size(); ++i) {
    const auto index = static_cast<int32_t>(i);
    submissions.push_back({engine_request(slots_[i].prompt, index % each, seed),
                           std::make_shared<Sink>(shared_from_this(), index),
                           index % each == 0 ? -1 : index / each * each});
  }
  auto ids = model_->loop->submit_all(std::move(submissions));
  if (!ids.ok()) return refuse_submission(ids.error());
  submitted_ = true;
  for (size_t i = 0; i < slots_.size(); ++i) slots_[i].id = (*ids)[i];
  if (options().stream) begin_stream();
}

void GenerationRun::refuse_submission(const Error& error) {
  if (error.kind == ErrorKind::kInvalidArgument) {
    if (error.where == "prompt") return refuse(context_exceeded(prompt_field_, error.message()));
    return refuse(invalid_field(error.where, error.message()));
  }
  if (error.kind != ErrorKind::kResource) {
    log_error("submit: {}", error.message());
    return refuse(http_error(500, "Internal error"));
  }
  if (context_.draining()) return refuse(unavailable("The server is shutting down"));
  ApiError full;
  full.status = 429;
  full.type = "rate_limit_error";
  full.message = "Too many requests are waiting; try again later";
  full.code = "queue_full";
  full.retry_after_s = 1;
  refuse(full);
}

void GenerationRun::begin_stream() {
  HttpResponse response;
  response.content_type = "text/event-stream; charset=utf-8";
  response.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
  response.body = opening_events();
  writer_->begin_stream(std::move(response), std::string(kSseKeepAlive), context_.options.keep_alive_ms);
}

void GenerationRun::refuse(const ApiError& error) {
  if (over_) return;
  over_ = true;
  writer_->send(error_response(error));
  writer_.reset();
}

// The client has gone.
void GenerationRun::leave() {
  if (over_) return;
  over_ = true;
  if (submitted_) {
    cancel_open();
    add_usage();
    observe(Outcome::kAbort);
  }
  writer_.reset();
}

void GenerationRun::notify() {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(notified_, true)) return;
  }
  outbox_->notify(shared_from_this());
}

void GenerationRun::pump() {
  std::vector<Arrival> arrivals;
  std::vector<std::pair<int32_t, FinishReason>> finishes;
  std::vector<std::pair<int32_t, std::vector<ops::SampleResult>>> prompts;
  {
    const std::lock_guard lock(mutex_);
    notified_ = false;
    arrivals.swap(arrivals_);
    finishes.swap(finishes_);
    prompts.swap(prompt_arrivals_);
  }
  if (over_) return;
  for (auto& [slot, results] : prompts) slots_[static_cast<size_t>(slot)].prompt_results = std::move(results);
  std::string events;
  const auto say = [&](int32_t slot) {
    if (options().stream) events += choice_events(slots_[static_cast<size_t>(slot)], slot);
  };
  std::set<int32_t> touched;
  for (const Arrival& arrival : arrivals) {
    Slot& slot = slots_[static_cast<size_t>(arrival.slot)];
    if (slot.over) continue;
    take(arrival);
    touched.insert(arrival.slot);
    if (!slot.text->ended()) continue;
    model_->loop->cancel(slot.id);
    end_choice(slot, FinishReason::kStop);
  }
  for (const auto& [index, reason] : finishes) {
    Slot& slot = slots_[static_cast<size_t>(index)];
    if (slot.over) continue;
    if (reason == FinishReason::kNumericalError) return fail(numerical_error());
    if (reason == FinishReason::kDeadline) return fail(timed_out(context_.options.request_timeout_ms));
    if (reason == FinishReason::kCancelled) return fail(unavailable("The server is shutting down"));
    end_choice(slot, reason);
    touched.insert(index);
  }
  for (const int32_t slot : touched) say(slot);
  if (!events.empty()) writer_->write(std::move(events));
  if (std::all_of(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.over; })) finish_all();
}

void GenerationRun::take(const Arrival& arrival) {
  Slot& slot = slots_[static_cast<size_t>(arrival.slot)];
  if (slot.last_token_us == 0) {
    context_.metrics->observe_first_token(seconds(arrival.time_us - arrived_us_));
  } else {
    context_.metrics->observe_inter_token(seconds(arrival.time_us - slot.last_token_us));
  }
  slot.last_token_us = arrival.time_us;
  slot.text->take(arrival.result);
}

void GenerationRun::end_choice(Slot& slot, FinishReason reason) {
  slot.over = true;
  slot.finish = slot.text->finish(reason == FinishReason::kLength);
}

void GenerationRun::finish_all() {
  over_ = true;
  add_usage();
  const bool cut = std::any_of(slots_.begin(), slots_.end(), [](const Slot& s) { return s.finish.reason == "length"; });
  observe(cut ? Outcome::kLength : Outcome::kStop);
  if (options().stream) {
    std::string events;
    if (options().include_usage) events += sse_event(usage_event());
    events += kSseDone;
    writer_->write(std::move(events));
    writer_->end();
    writer_.reset();
    return;
  }
  writer_->on_disconnect({});
  context_.post_text([self = shared_from_this()] {
    HttpResponse response;
    response.body = self->whole_body();
    self->writer_->send(std::move(response));
    self->writer_.reset();
  });
}

void GenerationRun::fail(const ApiError& error) {
  over_ = true;
  cancel_open();
  add_usage();
  observe(error.type == "numerical_error" ? Outcome::kError : Outcome::kAbort);
  if (!options().stream) {
    writer_->send(error_response(error));
  } else {
    std::string events;
    for (size_t i = 0; i < slots_.size(); ++i) {
      if (!slots_[i].over) events += choice_events(slots_[i], static_cast<int32_t>(i));
    }
    writer_->write(events + sse_event(error_body(error)) + std::string(kSseDone));
    writer_->end();
  }
  writer_.reset();
}

void GenerationRun::cancel_open() {
  for (const Slot& slot : slots_) {
    if (!slot.over) model_->loop->cancel(slot.id);
  }
}

void GenerationRun::add_usage() {
  for (const Slot& slot : slots_) {
    usage_.completion_tokens += static_cast<int32_t>(slot.text->tokens().size());
    usage_.reasoning_tokens += slot.text->reasoning_tokens();
  }
}

TokenBytes GenerationRun::token_bytes() const {
  return [tokenizer = model_->tokenizer](int32_t id) { return tokenizer->token_bytes(id); };
}

LogprobList GenerationRun::logprob_list(const std::vector<ops::SampleResult>& results, size_t first,
                                        int32_t alternatives) const {
  return {std::span(results).subspan(first), token_bytes(), alternatives};
}

void GenerationRun::observe(Outcome outcome) {
  context_.metrics->observe_finished(outcome, seconds(now_us() - arrived_us_), usage_.prompt_tokens,
                                     usage_.completion_tokens);
}

}  // namespace assay::server

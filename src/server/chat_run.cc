#include "server/chat_run.h"

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

std::string random_hex() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}", random(), random(), random());
}

uint64_t random_seed() {
  std::random_device random;
  return static_cast<uint64_t>(random()) << 32 | random();
}

int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

ApiError context_exceeded(std::string message) {
  ApiError error;
  error.message = std::move(message);
  error.param = "messages";
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

double seconds(int64_t microseconds) { return static_cast<double>(microseconds) * 1e-6; }

}  // namespace

void IgnoredFields::note(const std::string& name) {
  {
    const std::lock_guard lock(mutex_);
    if (seen_.size() >= kMaxLoggedFields || name.size() > kMaxLoggedFieldBytes || !seen_.insert(name).second) return;
  }
  std::string shown = name;
  std::replace_if(
      shown.begin(), shown.end(), [](unsigned char c) { return c < 0x20 || c >= 0x7f; }, '?');
  log_info("chat completions: the field {} has no effect here", shown);
}

ChatRun::ChatRun(ChatContext& context, std::shared_ptr<const Model> model, std::shared_ptr<ResponseWriter> writer)
    : context_(context),
      outbox_(context.outbox),
      model_(std::move(model)),
      writer_(std::move(writer)),
      arrived_us_(now_us()) {
  head_.id = "chatcmpl-" + random_hex();
  head_.created = unix_seconds();
  head_.model = context.options.model_id;
  head_.fingerprint = context.options.system_fingerprint;
}

void ChatRun::start(std::string body) {
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

std::optional<ApiError> ChatRun::prepare(const std::string& body) {
  if (auto refused = parse_chat_request(body, request_)) return refused;
  const ServerOptions& options = context_.options;
  const bool known = request_.model.empty() || request_.model == options.model_id ||
                     std::find(options.aliases.begin(), options.aliases.end(), request_.model) != options.aliases.end();
  if (!known) {
    ApiError error;
    error.status = 404;
    error.type = "not_found_error";
    error.message = fmt::format("The model {} does not exist; this server has {}", request_.model, options.model_id);
    error.param = "model";
    error.code = "model_not_found";
    return error;
  }
  for (const std::string& name : request_.ignored_fields) context_.ignored_fields.note(name);
  auto rendered = model_->chat_template->render(*request_.context);
  if (!rendered.ok()) {
    if (rendered.error().kind == ErrorKind::kInvalidArgument) {
      return invalid_field("messages", "The chat template refused the messages: " + rendered.error().message());
    }
    log_error("chat template: {}", rendered.error().message());
    return http_error(500, "Internal error");
  }
  prompt_ = model_->tokenizer->encode(*rendered);
  if (prompt_.empty()) return invalid_field("messages", "The messages make an empty prompt");
  if (static_cast<int64_t>(prompt_.size()) >= model_->context_tokens) {
    return context_exceeded(
        fmt::format("The model's context holds {} tokens, and one must be left to generate; the prompt has {} tokens",
                    model_->context_tokens, prompt_.size()));
  }
  detokenizer_.emplace(*model_->tokenizer, /*skip_special=*/true);
  stop_matcher_.emplace(request_.stop);
  reasoning_parser_.emplace(text::ReasoningParser::for_prompt(*rendered));
  usage_.prompt_tokens = static_cast<int32_t>(prompt_.size());
  return {};
}

scheduler::Request ChatRun::engine_request() {
  const SamplingDefaults& defaults = context_.options.sampling;
  scheduler::Request request;
  const int32_t room = model_->context_tokens - usage_.prompt_tokens;
  request.prompt = std::move(prompt_);
  request.max_tokens = request_.max_tokens ? std::min(*request_.max_tokens, room) : 0;
  request.stop_tokens = model_->stop_tokens;
  request.temperature = request_.temperature.value_or(defaults.do_sample ? defaults.temperature : 0.0f);
  request.top_k = request_.top_k.value_or(defaults.top_k);
  request.top_p = request_.top_p.value_or(defaults.top_p);
  request.min_p = request_.min_p.value_or(defaults.min_p);
  request.seed = request_.seed ? *request_.seed : random_seed();
  request.top_logprobs = request_.top_logprobs;
  return request;
}

void ChatRun::submit() {
  if (over_) return;
  auto id = model_->loop->submit(engine_request(), shared_from_this());
  if (!id.ok()) {
    const Error& error = id.error();
    if (error.kind == ErrorKind::kInvalidArgument) return refuse(context_exceeded(error.message()));
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
    return refuse(full);
  }
  id_ = *id;
  if (!request_.stream) return;
  HttpResponse response;
  response.content_type = "text/event-stream; charset=utf-8";
  response.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
  response.body = sse_event(role_chunk(head_));
  writer_->begin_stream(std::move(response), std::string(kSseKeepAlive), context_.options.keep_alive_ms);
}

void ChatRun::refuse(const ApiError& error) {
  if (over_) return;
  over_ = true;
  writer_->send(error_response(error));
  writer_.reset();
}

// The client has gone.
void ChatRun::leave() {
  if (over_) return;
  over_ = true;
  if (id_) {
    model_->loop->cancel(*id_);
    observe(Outcome::kAbort);
  }
  writer_.reset();
}

void ChatRun::on_token(const scheduler::TokenEvent& event) {
  {
    const std::lock_guard lock(mutex_);
    arrivals_.push_back({event.result, now_us()});
    if (std::exchange(notified_, true)) return;
  }
  outbox_->notify(shared_from_this());
}

void ChatRun::on_finish(const scheduler::FinishEvent& event) {
  {
    const std::lock_guard lock(mutex_);
    finished_ = event.reason;
    if (std::exchange(notified_, true)) return;
  }
  outbox_->notify(shared_from_this());
}

void ChatRun::pump() {
  std::vector<Arrival> arrivals;
  std::optional<FinishReason> finished;
  {
    const std::lock_guard lock(mutex_);
    notified_ = false;
    arrivals.swap(arrivals_);
    finished = finished_;
  }
  if (over_) return;
  for (const Arrival& arrival : arrivals) {
    take(arrival);
    if (matched_stop_ < 0) continue;
    model_->loop->cancel(*id_);
    return complete(FinishReason::kStop);
  }
  if (finished) return complete(*finished);
  if (request_.stream) send_pending();
}

void ChatRun::take(const Arrival& arrival) {
  const int32_t token = arrival.result.token;
  if (usage_.completion_tokens++ == 0) {
    context_.metrics->observe_first_token(seconds(arrival.time_us - arrived_us_));
  } else {
    context_.metrics->observe_inter_token(seconds(arrival.time_us - last_token_us_));
  }
  last_token_us_ = arrival.time_us;
  if (request_.logprobs) logprobs_.push_back(arrival.result);
  const auto& stops = model_->stop_tokens;
  if (std::find(stops.begin(), stops.end(), token) != stops.end()) return;
  show(detokenizer_->push(token));
  if (reasoning_parser_->in_reasoning()) ++usage_.reasoning_tokens;
}

void ChatRun::show(const std::string& text) {
  const text::StopMatcher::Out out = stop_matcher_->push(text);
  matched_stop_ = out.matched;
  text::TextDelta delta = reasoning_parser_->push(out.text);
  text_.reasoning += delta.reasoning;
  text_.content += delta.content;
}

// What detokenizer, matcher and parser hold back.
void ChatRun::flush_tail() {
  text::TextDelta delta;
  if (matched_stop_ < 0) show(detokenizer_->finish());
  if (matched_stop_ < 0) delta = reasoning_parser_->push(stop_matcher_->finish());
  const text::TextDelta last = reasoning_parser_->finish();
  text_.reasoning += delta.reasoning + last.reasoning;
  text_.content += delta.content + last.content;
}

void ChatRun::complete(FinishReason reason) {
  if (reason == FinishReason::kNumericalError) return fail(numerical_error());
  if (reason == FinishReason::kCancelled) return fail(unavailable("The server is shutting down"));
  over_ = true;
  flush_tail();
  Finish finish;
  finish.reason = reason == FinishReason::kLength ? "length" : "stop";
  if (matched_stop_ >= 0) {
    finish.reason = "stop";
    finish.stop_string = request_.stop[matched_stop_];
  }
  observe(finish.reason == "stop" ? Outcome::kStop : Outcome::kLength);
  if (request_.stream) {
    complete_stream(finish);
  } else {
    complete_whole(std::move(finish));
  }
}

void ChatRun::complete_stream(const Finish& finish) {
  send_pending();
  const LogprobList rest = logprob_list(sent_logprobs_);
  std::string events = sse_event(finish_chunk(head_, finish, rest.tokens.empty() ? nullptr : &rest));
  if (request_.include_usage) events += sse_event(usage_chunk(head_, usage_));
  events += kSseDone;
  writer_->write(std::move(events));
  writer_->end();
  writer_.reset();
}

void ChatRun::complete_whole(Finish finish) {
  writer_->on_disconnect({});
  context_.post_text([self = shared_from_this(), finish = std::move(finish)] {
    const LogprobList list = self->logprob_list(0);
    HttpResponse response;
    response.body =
        completion_body(self->head_, self->text_, finish, self->usage_, self->request_.logprobs ? &list : nullptr);
    self->writer_->send(std::move(response));
    self->writer_.reset();
  });
}

void ChatRun::fail(const ApiError& error) {
  over_ = true;
  observe(error.type == "numerical_error" ? Outcome::kError : Outcome::kAbort);
  if (!request_.stream) {
    writer_->send(error_response(error));
  } else {
    send_pending();
    writer_->write(sse_event(error_body(error)) + std::string(kSseDone));
    writer_->end();
  }
  writer_.reset();
}

void ChatRun::send_pending() {
  if (text_.reasoning.empty() && text_.content.empty()) return;
  const LogprobList list = logprob_list(sent_logprobs_);
  sent_logprobs_ = logprobs_.size();
  const LogprobList* logprobs = list.tokens.empty() ? nullptr : &list;
  std::string events;
  if (!text_.reasoning.empty()) {
    events += sse_event(reasoning_chunk(head_, text_.reasoning, logprobs));
    logprobs = nullptr;
  }
  if (!text_.content.empty()) events += sse_event(content_chunk(head_, text_.content, logprobs));
  text_ = {};
  writer_->write(std::move(events));
}

LogprobList ChatRun::logprob_list(size_t first) const {
  return {std::span(logprobs_).subspan(first),
          [tokenizer = model_->tokenizer](int32_t id) { return tokenizer->token_bytes(id); }};
}

void ChatRun::observe(Outcome outcome) {
  context_.metrics->observe_finished(outcome, seconds(now_us() - arrived_us_), usage_.prompt_tokens,
                                     usage_.completion_tokens);
}

}  // namespace assay::server

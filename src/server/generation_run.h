// One request for generated text, from its body to its last byte: what chat completions and completions share.
//
//   text pool    prepare(): JSON, template, encode
//   IO thread    submit(); pump(): detokenize, stop strings, reasoning, tool calls, chunks; disconnect
//   engine       tokens and finishes of each choice: handed over
//   text pool    the JSON of an answer that is not streamed
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/choice.h"
#include "server/http_server.h"
#include "server/metrics.h"
#include "server/model.h"
#include "server/outbox.h"
#include "server/response_parts.h"
#include "server/server_options.h"

namespace assay::server {

// Names of request fields that were ignored, to log each once. Thread-safe.
class IgnoredFields {
 public:
  void note(const std::string& name);

 private:
  std::mutex mutex_;
  std::set<std::string> seen_;
};

// What all runs share; outlives them.
struct RunContext {
  using Post = std::function<void(std::function<void()>)>;
  ServerOptions options;
  Metrics* metrics = nullptr;
  Post post_io;
  Post post_text;
  std::shared_ptr<Outbox> outbox;
  std::function<bool()> draining;
  IgnoredFields ignored_fields;
};

std::string random_hex();

// 404 when the request names a model that is not the served one.
MaybeError check_model_name(const ServerOptions& options, const std::string& name);

// Owner: whoever works on it next (a posted task, then the sinks that the loop holds). The writer is given up on the IO
// thread as soon as the answer is complete or the client has left.
class GenerationRun : public Outgoing, public std::enable_shared_from_this<GenerationRun> {
 public:
  void start(std::string body);  // IO thread
  void pump() override;

 protected:
  // A choice, and where it stands.
  struct Slot {
    std::optional<Choice> text;
    int32_t prompt = 0;
    uint64_t id = 0;  // in the loop
    bool over = false;
    ChoiceFinish finish;
    std::vector<ops::SampleResult> prompt_results;  // when asked for; entry i is prompt token i + 1
    int64_t last_token_us = 0;
  };

  GenerationRun(RunContext& context, std::shared_ptr<const Model> model, std::shared_ptr<ResponseWriter> writer,
                const char* id_prefix);

  // Of the endpoint. parse() fills prompts_; the others are called on the IO thread, but whole_body() on the text pool.
  virtual MaybeError parse(const std::string& body) = 0;
  virtual const GenerationOptions& options() const = 0;
  virtual int32_t choices_per_prompt() const = 0;
  virtual bool scores_prompt(int32_t choice) const = 0;  // choice: within its prompt
  virtual void add_settings(int32_t /*prompt*/, ChoiceSettings&) const {}
  // Events of a stream: before the first token; what is new of a choice, and its end when it is over; the usage.
  virtual std::string opening_events() = 0;
  virtual std::string choice_events(Slot& slot, int32_t index) = 0;
  virtual std::string usage_event() const = 0;
  virtual std::string whole_body() = 0;

  TokenBytes token_bytes() const;
  LogprobList logprob_list(const std::vector<ops::SampleResult>& results, size_t first, int32_t alternatives) const;

  RunContext& context_;
  std::shared_ptr<const Model> model_;
  CompletionHead head_;
  std::vector<std::vector<int32_t>> prompts_;
  const char* prompt_field_ = "prompt";  // named when a prompt is too long
  std::vector<Slot> slots_;              // by prompt, then by choice
  Usage usage_;

 private:
  class Sink;
  struct Arrival {
    int32_t slot;
    ops::SampleResult result;
    int64_t time_us;
  };

  MaybeError prepare(const std::string& body);
  MaybeError check_prompts() const;
  std::vector<int32_t> stop_tokens() const;
  scheduler::Request engine_request(int32_t prompt, int32_t choice, uint64_t seed) const;
  void submit();
  void begin_stream();
  void refuse(const ApiError& error);
  void refuse_submission(const Error& error);
  void leave();
  void notify();

  void take(const Arrival& arrival);
  void end_choice(Slot& slot, scheduler::FinishReason reason);
  void finish_all();
  void fail(const ApiError& error);
  void cancel_open();
  void add_usage();
  void observe(Outcome outcome);

  const std::shared_ptr<Outbox> outbox_;  // the loop may finish a request after the server is gone
  std::shared_ptr<ResponseWriter> writer_;
  const int64_t arrived_us_;

  // Between engine and IO thread. At most as many entries as tokens were asked for.
  std::mutex mutex_;
  std::vector<Arrival> arrivals_;
  std::vector<std::pair<int32_t, scheduler::FinishReason>> finishes_;
  std::vector<std::pair<int32_t, std::vector<ops::SampleResult>>> prompt_arrivals_;
  bool notified_ = false;

  // IO thread.
  bool submitted_ = false;
  bool over_ = false;  // answered, failed or left: what still comes is dropped
};

}  // namespace assay::server

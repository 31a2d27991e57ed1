// One chat completion, from its body to its last byte.
//
//   text pool    prepare(): JSON, template, encode
//   IO thread    submit(); pump(): detokenize, stop strings, reasoning, chunks; disconnect
//   engine       on_token(), on_finish(): hand over and return
//   text pool    the JSON of an answer that is not streamed
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "server/chat_request.h"
#include "server/chat_response.h"
#include "server/http_server.h"
#include "server/metrics.h"
#include "server/model.h"
#include "server/outbox.h"
#include "server/server_options.h"
#include "text/detokenizer.h"
#include "text/reasoning_parser.h"
#include "text/stop_matcher.h"

namespace assay::server {

// Names of request fields that were ignored, to log each once. Thread-safe.
class IgnoredFields {
 public:
  void note(const std::string& name);

 private:
  std::mutex mutex_;
  std::set<std::string> seen_;
};

// What all completions share; outlives them.
struct ChatContext {
  using Post = std::function<void(std::function<void()>)>;
  ServerOptions options;
  Metrics* metrics = nullptr;
  Post post_io;
  Post post_text;
  std::shared_ptr<Outbox> outbox;
  std::function<bool()> draining;
  IgnoredFields ignored_fields;
};

// Owner: whoever works on it next (a posted task, then the loop as its sink). The writer is given up on the IO thread
// as soon as the answer is complete or the client has left.
class ChatRun : public scheduler::RequestSink, public Outgoing, public std::enable_shared_from_this<ChatRun> {
 public:
  ChatRun(ChatContext& context, std::shared_ptr<const Model> model, std::shared_ptr<ResponseWriter> writer);

  void start(std::string body);  // IO thread

  void on_token(const scheduler::TokenEvent& event) override;
  void on_finish(const scheduler::FinishEvent& event) override;
  void pump() override;

 private:
  struct Arrival {
    ops::SampleResult result;
    int64_t time_us;
  };

  std::optional<ApiError> prepare(const std::string& body);
  scheduler::Request engine_request();
  void submit();
  void refuse(const ApiError& error);
  void leave();

  void take(const Arrival& arrival);
  void show(const std::string& text);
  void flush_tail();
  void complete(scheduler::FinishReason reason);
  void complete_stream(const Finish& finish);
  void complete_whole(Finish finish);
  void fail(const ApiError& error);
  void send_pending();
  LogprobList logprob_list(size_t first) const;
  void observe(Outcome outcome);

  ChatContext& context_;
  const std::shared_ptr<Outbox> outbox_;  // the loop may finish a request after the server is gone
  std::shared_ptr<const Model> model_;
  std::shared_ptr<ResponseWriter> writer_;
  const int64_t arrived_us_;
  CompletionHead head_;

  // Set by prepare().
  ChatRequest request_;
  std::vector<int32_t> prompt_;

  // Between engine and IO thread. At most as many entries as tokens were asked for.
  std::mutex mutex_;
  std::vector<Arrival> arrivals_;
  std::optional<scheduler::FinishReason> finished_;
  bool notified_ = false;

  // IO thread.
  std::optional<uint64_t> id_;  // in the loop
  bool over_ = false;           // answered, failed or left: what still comes is dropped
  std::optional<text::Detokenizer> detokenizer_;
  std::optional<text::StopMatcher> stop_matcher_;
  std::optional<text::ReasoningParser> reasoning_parser_;
  int matched_stop_ = -1;
  text::TextDelta text_;                     // not yet sent
  std::vector<ops::SampleResult> logprobs_;  // of all generated tokens, when asked for
  size_t sent_logprobs_ = 0;
  Usage usage_;
  int64_t last_token_us_ = 0;
};

}  // namespace assay::server

// assay chat: a conversation in the terminal. Ctrl-C stops the answer, not the program.
#include <fmt/core.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <memory>
#include <optional>

#include <nlohmann/json.hpp>

#include "assay/chat_prompt.h"
#include "assay/command.h"
#include "assay/sampling_options.h"
#include "assay/session.h"
#include "assay/token_stream.h"
#include "text/detokenizer.h"
#include "text/reasoning_parser.h"

namespace assay::app {
namespace {

using nlohmann::ordered_json;

struct ChatOptions {
  CommonOptions common;
  SamplingOptions sampling;
  std::string system;
  std::string thinking = "default";
};

std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free, "set by a signal handler");

constexpr int kPollMs = 50;  // how soon Ctrl-C is noticed

void show(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

// Lines of standard input. Does not block in a read, so that Ctrl-C is seen.
class LineReader {
 public:
  enum class Outcome { kLine, kEnd, kInterrupted };

  Outcome read(std::string& line) {
    while (true) {
      if (const size_t end = buffer_.find('\n'); end != std::string::npos) {
        line = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        return Outcome::kLine;
      }
      if (interrupted.exchange(false)) return Outcome::kInterrupted;
      pollfd input{STDIN_FILENO, POLLIN, 0};
      if (poll(&input, 1, kPollMs) <= 0) continue;
      char bytes[4096];
      const ssize_t count = ::read(STDIN_FILENO, bytes, sizeof(bytes));
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) {
        line = std::exchange(buffer_, "");
        return line.empty() ? Outcome::kEnd : Outcome::kLine;
      }
      buffer_.append(bytes, static_cast<size_t>(count));
    }
  }

 private:
  std::string buffer_;
};

// Shows reasoning dimmed where the output is a terminal.
class Display {
 public:
  void add(const text::TextDelta& delta) {
    if (!delta.reasoning.empty()) {
      if (!dimmed_ && terminal_) show("\x1b[2m");
      dimmed_ = true;
      show(delta.reasoning);
    }
    if (!delta.content.empty()) {
      end_reasoning();
      show(delta.content);
    }
  }
  void end_reasoning() {
    if (!dimmed_) return;
    show(terminal_ ? "\x1b[0m\n" : "\n");
    dimmed_ = false;
  }

 private:
  const bool terminal_ = isatty(STDOUT_FILENO) == 1;
  bool dimmed_ = false;
};

class Conversation {
 public:
  Conversation(Session& session, const text::ChatTemplate& chat_template, const ChatOptions& options)
      : session_(session), template_(chat_template), options_(options) {
    reset();
  }

  void reset() {
    messages_ = ordered_json::array();
    if (!options_.system.empty()) messages_.push_back({{"role", "system"}, {"content", options_.system}});
  }

  // The question and the answer, also one that was stopped, become part of the conversation; after an error nothing
  // does.
  Result<void> answer(const std::string& question) {
    messages_.push_back({{"role", "user"}, {"content", question}});
    auto result = generate();
    if (!result.ok()) messages_.erase(messages_.size() - 1);
    return result;
  }

 private:
  Result<void> generate() {
    ASSAY_ASSIGN(const std::string prompt,
                 render_chat(template_, messages_, nullptr, parse_thinking(options_.thinking)));
    scheduler::Request request;
    request.prompt = session_.tokenizer->encode(prompt);
    request.stop_tokens = session_.stop_tokens;
    apply_sampling(options_.sampling, session_.generation, request);
    auto stream = std::make_shared<TokenStream>();
    interrupted = false;
    ASSAY_ASSIGN(const uint64_t id, session_.loop->submit(std::move(request), stream));
    const text::TextDelta whole = follow(*stream, id, text::ReasoningParser::for_prompt(prompt));
    const scheduler::FinishReason reason = stream->finish().reason;
    if (reason == scheduler::FinishReason::kNumericalError) {
      return Error{ErrorKind::kNumerical, "the model's logits were not finite", "", "", "", ""};
    }
    if (reason == scheduler::FinishReason::kCancelled) show("(stopped)\n");
    if (reason == scheduler::FinishReason::kLength) show("(no more room: --max-tokens or the context is used up)\n");
    ordered_json message{{"role", "assistant"}, {"content", whole.content}};
    if (!whole.reasoning.empty()) message["reasoning_content"] = whole.reasoning;
    messages_.push_back(std::move(message));
    return {};
  }

  // Shows the answer as it comes; returns all of it.
  text::TextDelta follow(TokenStream& stream, uint64_t id, text::ReasoningParser parser) {
    text::Detokenizer detokenizer(*session_.tokenizer, true);
    text::TextDelta whole;
    Display display;
    const auto add = [&](const text::TextDelta& delta) {
      display.add(delta);
      whole.reasoning += delta.reasoning;
      whole.content += delta.content;
    };
    ops::SampleResult token;
    for (auto next = stream.next(token, kPollMs * 1000); next != TokenStream::Next::kFinished;
         next = stream.next(token, kPollMs * 1000)) {
      if (next == TokenStream::Next::kToken && !session_.is_stop(token.token)) {
        add(parser.push(detokenizer.push(token.token)));
      }
      if (interrupted.exchange(false)) session_.loop->cancel(id);
    }
    add(parser.push(detokenizer.finish()));
    add(parser.finish());
    display.end_reasoning();
    show("\n");
    return whole;
  }

  Session& session_;
  const text::ChatTemplate& template_;
  const ChatOptions& options_;
  ordered_json messages_;
};

Result<void> run(const ChatOptions& options) {
  ASSAY_ASSIGN(const auto chat_template, text::ChatTemplate::load(options.common.model_directory));
  ASSAY_ASSIGN(Session session, open_session(options.common, 1));
  struct sigaction action = {};
  action.sa_handler = [](int) { interrupted = true; };
  sigaction(SIGINT, &action, nullptr);
  show("Ctrl-C stops an answer, /reset starts afresh, /exit or Ctrl-D leaves.\n");
  Conversation conversation(session, *chat_template, options);
  LineReader reader;
  std::string line;
  while (true) {
    show("> ");
    const LineReader::Outcome outcome = reader.read(line);
    if (outcome == LineReader::Outcome::kInterrupted) {
      show("\n(/exit or Ctrl-D leaves)\n");
      continue;
    }
    if (outcome == LineReader::Outcome::kEnd || line == "/exit") break;
    if (line.empty()) continue;
    if (line == "/reset") {
      conversation.reset();
      show("(new conversation)\n");
      continue;
    }
    if (auto result = conversation.answer(line); !result.ok()) {
      fmt::print(stderr, "{} (/reset starts afresh)\n", result.error().message());
    }
  }
  show("\n");
  return {};
}

}  // namespace

Command add_chat(CLI::App& parent) {
  auto options = std::make_shared<ChatOptions>();
  CLI::App& app = add_subcommand(parent, "chat", "Talk to the model in the terminal");
  add_common_options(app, options->common);
  add_option(app, "--system", options->system, "System message of the conversation");
  add_thinking(app, options->thinking);
  add_sampling_options(app, options->sampling);
  return {&app, [options] { return run(*options); }};
}

}  // namespace assay::app

// assay eval: answers questions of a file greedily and counts the right ones, by family.
#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <numeric>

#include <nlohmann/json.hpp>

#include "assay/chat_prompt.h"
#include "assay/command.h"
#include "assay/session.h"
#include "assay/token_stream.h"
#include "base/clock.h"

namespace assay::app {
namespace {

using nlohmann::ordered_json;

struct EvalOptions {
  CommonOptions common;
  std::string file;
  int32_t limit = 0;
  bool json = false;
};

struct Question {
  std::string id, family, prompt, answer;
  ordered_json messages, tools;
  Thinking thinking = Thinking::kOff;
  int32_t max_tokens = 0;
  std::shared_ptr<TokenStream> stream;
};

struct Score {
  int total = 0;
  int correct = 0;
};

struct Report {
  Score all;
  std::map<std::string, Score> families;
  std::vector<std::string> wrong;  // ids
  int prompt_mismatches = 0;
  int64_t generated_tokens = 0;
  double seconds = 0;
};

Result<Question> parse_question(std::string_view line, const std::string& where) {
  const ordered_json row = ordered_json::parse(line, nullptr, false);
  const auto is = [&](const char* key, auto check) {
    const auto found = row.find(key);
    return found != row.end() && check(*found);
  };
  const auto text = [](const ordered_json& value) { return value.is_string(); };
  if (!row.is_object() || !is("id", text) || !is("family", text) || !is("prompt", text) || !is("answer", text) ||
      !is("messages", [](const ordered_json& value) { return value.is_array(); }) ||
      !is("thinking", [](const ordered_json& value) { return value.is_boolean(); }) ||
      !is("max_tokens", [](const ordered_json& value) { return value.is_number_integer(); })) {
    return Error{ErrorKind::kInvalidArgument,
                 "not a question",
                 where,
                 std::string(line.substr(0, 80)),
                 "an object with id, family, messages, tools, thinking, prompt, answer, max_tokens",
                 ""};
  }
  Question question;
  question.id = row["id"];
  question.family = row["family"];
  question.prompt = row["prompt"];
  question.answer = row["answer"];
  question.messages = row["messages"];
  if (row.contains("tools")) question.tools = row["tools"];
  question.thinking = row["thinking"].get<bool>() ? Thinking::kOn : Thinking::kOff;
  question.max_tokens = row["max_tokens"].get<int32_t>();
  return question;
}

// With a limit, questions spread evenly over the file, which is sorted by family.
Result<std::vector<Question>> read_questions(const std::string& path, int32_t limit) {
  ASSAY_ASSIGN(const std::string text, read_input(path));
  std::vector<std::pair<std::string_view, int>> lines;
  const std::string_view view = text;
  int number = 0;
  for (size_t begin = 0; begin < view.size();) {
    const size_t end = std::min(view.find('\n', begin), view.size());
    ++number;
    if (end > begin) lines.emplace_back(view.substr(begin, end - begin), number);
    begin = end + 1;
  }
  const size_t count = limit > 0 ? std::min<size_t>(limit, lines.size()) : lines.size();
  std::vector<Question> questions;
  for (size_t i = 0; i < count; ++i) {
    const auto& [line, line_number] = lines[i * lines.size() / count];
    ASSAY_ASSIGN(Question question, parse_question(line, fmt::format("{}:{}", path, line_number)));
    questions.push_back(std::move(question));
  }
  return questions;
}

std::string stripped(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n\f\v";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return "";
  return std::string(text.substr(begin, text.find_last_not_of(kSpace) - begin + 1));
}

std::string answer_of(std::string_view text) {
  constexpr std::string_view kEndOfThinking = "</think>";
  const size_t end = text.rfind(kEndOfThinking);
  return stripped(end == std::string_view::npos ? text : text.substr(end + kEndOfThinking.size()));
}

Result<int> submit_all(Session& session, const text::ChatTemplate& chat_template, std::vector<Question>& questions) {
  int mismatches = 0;
  for (Question& question : questions) {
    ASSAY_ASSIGN(const std::string prompt,
                 render_chat(chat_template, question.messages, question.tools, question.thinking));
    mismatches += prompt != question.prompt ? 1 : 0;
    scheduler::Request request;
    request.prompt = session.tokenizer->encode(prompt);
    request.max_tokens = question.max_tokens;
    request.stop_tokens = session.stop_tokens;
    question.stream = std::make_shared<TokenStream>();
    ASSAY_ASSIGN([[maybe_unused]] const uint64_t id, session.loop->submit(std::move(request), question.stream));
  }
  return mismatches;
}

void score(const Session& session, Question& question, Report& report) {
  std::vector<int32_t> ids;
  for (const ops::SampleResult& token : question.stream->wait()) ids.push_back(token.token);
  const bool right = answer_of(session.decode(ids, false)) == question.answer;
  Score& family = report.families[question.family];
  ++family.total;
  ++report.all.total;
  family.correct += right;
  report.all.correct += right;
  if (!right) report.wrong.push_back(question.id);
  report.generated_tokens += static_cast<int64_t>(ids.size());
}

void print_progress(const Session& session, size_t total, int64_t begin_us) {
  const scheduler::LoopStats stats = session.loop->stats();
  const int64_t done =
      std::accumulate(std::begin(stats.requests_finished), std::end(stats.requests_finished), int64_t{0});
  const double seconds = static_cast<double>(now_us() - begin_us) * 1e-6;
  fmt::print(stderr, "{} of {} answered, {:.0f} generated tokens/s\n", done, total,
             static_cast<double>(stats.generation_tokens_total) / seconds);
}

void print_table(const Report& report) {
  fmt::print("{:<16} {:>6} {:>8} {:>7}\n", "family", "total", "correct", "%");
  const auto row = [](const std::string& name, const Score& score) {
    fmt::print("{:<16} {:>6} {:>8} {:>7.2f}\n", name, score.total, score.correct, 100.0 * score.correct / score.total);
  };
  for (const auto& [name, family] : report.families) row(name, family);
  row("all", report.all);
  fmt::print("prompts that the template renders differently: {}\n", report.prompt_mismatches);
  fmt::print("{} tokens generated in {:.1f} s\n", report.generated_tokens, report.seconds);
  for (const std::string& id : report.wrong) fmt::print("wrong: {}\n", id);
}

void print_json(const Report& report) {
  ordered_json out{{"total", report.all.total}, {"correct", report.all.correct}};
  ordered_json families = ordered_json::object();
  for (const auto& [name, family] : report.families) {
    families[name] = ordered_json{{"total", family.total}, {"correct", family.correct}};
  }
  out["families"] = std::move(families);
  out["wrong"] = report.wrong;
  out["prompt_mismatches"] = report.prompt_mismatches;
  out["generated_tokens"] = report.generated_tokens;
  out["seconds"] = report.seconds;
  fmt::print("{}\n", out.dump());
}

Result<void> run(const EvalOptions& options) {
  ASSAY_ASSIGN(std::vector<Question> questions, read_questions(options.file, options.limit));
  if (questions.empty())
    return Error{ErrorKind::kInvalidArgument, "the file has no questions", options.file, "", "", ""};
  ASSAY_ASSIGN(const auto chat_template, text::ChatTemplate::load(options.common.model_directory));
  ASSAY_ASSIGN(Session session, open_session(options.common, std::numeric_limits<int32_t>::max()));
  Report report;
  const int64_t begin_us = now_us();
  ASSAY_ASSIGN(report.prompt_mismatches, submit_all(session, *chat_template, questions));
  constexpr int64_t kProgressUs = 5'000'000;
  for (Question& question : questions) {
    while (!question.stream->done_within(kProgressUs)) print_progress(session, questions.size(), begin_us);
    score(session, question, report);
    question = {};
  }
  report.seconds = static_cast<double>(now_us() - begin_us) * 1e-6;
  options.json ? print_json(report) : print_table(report);
  return {};
}

}  // namespace

Command add_eval(CLI::App& parent) {
  auto options = std::make_shared<EvalOptions>();
  CLI::App& app = add_subcommand(parent, "eval", "Answer the questions of a file and count the right answers");
  add_common_options(app, options->common);
  add_option(app, "--file", options->file, "Questions, one JSON object a line, as models/pocket/eval.jsonl").required();
  add_option(app, "--limit", options->limit, "Only this many questions, spread evenly over the file; 0: all")
      .range(0, std::numeric_limits<int32_t>::max())
      .show_default();
  add_flag(app, "--json", options->json,
           "Print one object: total, correct, families (name -> total, correct), wrong, prompt_mismatches");
  return {&app, [options] { return run(*options); }};
}

}  // namespace assay::app

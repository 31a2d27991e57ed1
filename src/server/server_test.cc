#include "server/server.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "scheduler/fake_engine.h"
#include "server/test_client.h"

namespace assay::server {
namespace {

using namespace std::chrono_literals;
using Json = nlohmann::ordered_json;

constexpr const char* kModel = "models/pocket";
constexpr const char* kChat = "/v1/chat/completions";
constexpr int32_t kImEnd = 3049;
constexpr int32_t kContext = 512;

template <class Condition>
bool within_10_s(Condition condition) {
  for (int i = 0; i < 5000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(2ms);
  }
  return false;
}

std::string chat_body(const Json& more = nullptr, const std::string& text = "hi", bool thinking = false) {
  Json body;
  body["model"] = "pocket";
  body["messages"] = Json::array({{{"role", "user"}, {"content", text}}});
  body["chat_template_kwargs"] = {{"enable_thinking", thinking}};
  if (!more.is_null()) body.update(more);
  return body.dump();
}

// The events of a stream; the last one is "[DONE]".
std::vector<std::string> events_of(const std::string& body) {
  std::vector<std::string> events;
  for (size_t at = 0; at < body.size();) {
    const size_t end = body.find("\n\n", at);
    EXPECT_NE(end, std::string::npos) << body;
    if (end == std::string::npos) break;
    const std::string event = body.substr(at, end - at);
    EXPECT_TRUE(event.starts_with("data: ")) << event;
    events.push_back(event.substr(6));
    at = end + 2;
  }
  return events;
}

// The server with pocket's tokenizer and template, and an engine that says what reply_ holds, token by token.
class ServerTest : public ::testing::Test {
 protected:
  void start_unready(ServerOptions options = {}) {
    options.port = 0;
    options.model_id = "pocket";
    options.aliases = {"org/alias"};
    options.system_fingerprint = "assay-test";
    auto server = Server::start(options);
    ASSERT_TRUE(server.ok()) << server.error().message();
    server_ = std::move(server).value();
  }

  void make_ready() {
    auto tokenizer = text::Tokenizer::load(kModel);
    auto chat_template = text::ChatTemplate::load(kModel);
    ASSERT_TRUE(tokenizer.ok() && chat_template.ok());
    tokenizer_ = std::move(tokenizer).value();
    template_ = std::move(chat_template).value();
    fake_.limits.context_tokens = kContext;
    fake_.limits.vocab_size = 3072;
    if (!fake_.script) {
      fake_.script = [this](const std::vector<int32_t>&, const ops::SampleParams& params) {
        return params.counter < reply_.size() ? reply_[params.counter] : kImEnd;
      };
    }
    engine_ = std::make_unique<scheduler::FakeEngine>(fake_);
    loop_ = std::make_unique<scheduler::Loop>(*engine_, loop_options_);
    Model model;
    model.tokenizer = tokenizer_.get();
    model.chat_template = template_.get();
    model.loop = loop_.get();
    model.stop_tokens = stop_tokens_;
    model.context_tokens = kContext;
    server_->set_ready(model);
  }

  void start(ServerOptions options = {}) {
    start_unready(options);
    make_ready();
  }

  void say(const std::string& text) { reply_ = tokenizer_->encode(text); }

  TestResponse chat(const std::string& body) { return TestClient(server_->port()).call("POST", kChat, body); }
  Json get(const std::string& target, int status = 200) {
    const TestResponse response = TestClient(server_->port()).call("GET", target);
    EXPECT_EQ(response.status, status) << target;
    EXPECT_EQ(response.headers.at("content-type"), "application/json");
    return Json::parse(response.body);
  }
  bool idle() {
    const scheduler::LoopStats stats = loop_->stats();
    return stats.running == 0 && stats.waiting == 0 && stats.pages_used == 0 && stats.slots_used == 0;
  }

  scheduler::FakeOptions fake_;
  scheduler::LoopOptions loop_options_;
  std::vector<int32_t> stop_tokens_ = {kImEnd, 3047};
  std::vector<int32_t> reply_;  // set while no request runs
  std::unique_ptr<text::Tokenizer> tokenizer_;
  std::unique_ptr<text::ChatTemplate> template_;
  std::unique_ptr<scheduler::FakeEngine> engine_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<scheduler::Loop> loop_;  // ends first, as in the program
};

TEST_F(ServerTest, WholeCompletion) {
  start();
  say("34 + 55 = 89");
  const TestResponse response = chat(chat_body());
  ASSERT_EQ(response.status, 200) << response.body;
  const Json json = Json::parse(response.body);
  EXPECT_TRUE(json["id"].get<std::string>().starts_with("chatcmpl-"));
  EXPECT_EQ(json["object"], "chat.completion");
  EXPECT_EQ(json["model"], "pocket");
  EXPECT_EQ(json["system_fingerprint"], "assay-test");
  const Json& choice = json["choices"][0];
  EXPECT_EQ(choice["message"]["content"], "34 + 55 = 89");
  EXPECT_TRUE(choice["message"]["reasoning_content"].is_null());
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_TRUE(choice["stop_reason"].is_null());
  EXPECT_TRUE(choice["logprobs"].is_null());
  const int prompt_tokens = static_cast<int>(
      tokenizer_->encode("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n").size());
  EXPECT_EQ(json["usage"]["prompt_tokens"], prompt_tokens);
  EXPECT_EQ(json["usage"]["completion_tokens"], reply_.size() + 1);
  EXPECT_EQ(json["usage"]["total_tokens"], prompt_tokens + reply_.size() + 1);
  EXPECT_EQ(json["usage"]["completion_tokens_details"]["reasoning_tokens"], 0);
}

TEST_F(ServerTest, StreamOrder) {
  start();
  say("carry 1\n</think>\n\nThe sum is 89.");
  const TestResponse response =
      chat(chat_body({{"stream", true}, {"stream_options", {{"include_usage", true}}}}, "hi", /*thinking=*/true));
  ASSERT_EQ(response.status, 200);
  EXPECT_EQ(response.headers.at("content-type"), "text/event-stream; charset=utf-8");
  const auto events = events_of(response.body);
  ASSERT_GE(events.size(), 6u);
  EXPECT_EQ(events.back(), "[DONE]");
  const Json first = Json::parse(events[0]);
  EXPECT_EQ(first["choices"][0]["delta"], Json::parse(R"({"role":"assistant","content":""})"));
  std::string reasoning, content;
  for (size_t i = 1; i + 3 < events.size(); ++i) {
    const Json chunk = Json::parse(events[i]);
    const Json& delta = chunk["choices"][0]["delta"];
    EXPECT_TRUE(chunk["choices"][0]["finish_reason"].is_null());
    EXPECT_FALSE(chunk.contains("usage"));
    EXPECT_EQ(chunk["id"], first["id"]);
    EXPECT_EQ(chunk["created"], first["created"]);
    EXPECT_EQ(delta.size(), delta.contains("content") ? 1u : 2u) << events[i];
    if (delta.contains("content")) {
      content += delta["content"].get<std::string>();
    } else {
      EXPECT_TRUE(content.empty()) << "reasoning comes first";
      EXPECT_EQ(delta["reasoning"], delta["reasoning_content"]);
      reasoning += delta["reasoning_content"].get<std::string>();
    }
  }
  EXPECT_EQ(reasoning, "carry 1\n");
  EXPECT_EQ(content, "The sum is 89.");
  const Json finish = Json::parse(events[events.size() - 3]);
  EXPECT_EQ(finish["choices"][0]["delta"], Json::object());
  EXPECT_EQ(finish["choices"][0]["finish_reason"], "stop");
  const Json usage = Json::parse(events[events.size() - 2]);
  EXPECT_EQ(usage["choices"], Json::array());
  EXPECT_EQ(usage["usage"]["completion_tokens"], reply_.size() + 1);
  EXPECT_EQ(usage["usage"]["completion_tokens_details"]["reasoning_tokens"], tokenizer_->encode("carry 1\n").size());
}

TEST_F(ServerTest, NoUsageUnasked) {
  start();
  say("89");
  const auto events = events_of(chat(chat_body({{"stream", true}})).body);
  for (const std::string& event : events) EXPECT_EQ(event.find("usage"), std::string::npos) << event;
  EXPECT_EQ(Json::parse(events[events.size() - 2])["choices"][0]["finish_reason"], "stop");
}

TEST_F(ServerTest, StreamAndWholeAgree) {
  start();
  for (const char* text :
       {"plain", "thought</think>\n\nanswer", "Grüße, 世界 🙂", "only thought", "<think>x</think>y"}) {
    say(text);
    for (const bool thinking : {false, true}) {
      const Json whole = Json::parse(chat(chat_body({}, "hi", thinking)).body)["choices"][0]["message"];
      std::string reasoning, content;
      for (const std::string& event : events_of(chat(chat_body({{"stream", true}}, "hi", thinking)).body)) {
        if (event == "[DONE]") break;
        const Json delta = Json::parse(event)["choices"][0]["delta"];
        reasoning += delta.value("reasoning", "");
        content += delta.value("content", "");
      }
      EXPECT_EQ(whole["content"], content) << text;
      EXPECT_EQ(whole["reasoning"].is_null() ? "" : whole["reasoning"].get<std::string>(), reasoning) << text;
    }
  }
}

TEST_F(ServerTest, MaxTokensEndsWithLength) {
  start();
  say("one two three four five six seven");
  const Json json = Json::parse(chat(chat_body({{"max_completion_tokens", 3}, {"max_tokens", 5}})).body);
  EXPECT_EQ(json["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(json["usage"]["completion_tokens"], 3);
  // More than the context holds is cut to it.
  reply_.assign(2 * kContext, tokenizer_->encode("x")[0]);
  const Json full = Json::parse(chat(chat_body({{"max_tokens", 100'000}})).body);
  EXPECT_EQ(full["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(full["usage"]["total_tokens"], kContext);
}

TEST_F(ServerTest, StopStringEndsTheRequestInTheLoopToo) {
  fake_.latency_us = 500;
  start();
  say("alpha beta gamma" + std::string(800, 'x'));
  for (const bool stream : {false, true}) {
    const TestResponse response = chat(chat_body({{"stop", {"zzz", "ta ga"}}, {"stream", stream}}));
    const auto events = stream ? events_of(response.body) : std::vector<std::string>{};
    const Json choice = Json::parse(stream ? events[events.size() - 2] : response.body)["choices"][0];
    EXPECT_EQ(choice["finish_reason"], "stop");
    EXPECT_EQ(choice["stop_reason"], "ta ga");
    std::string content = stream ? "" : choice["message"]["content"].get<std::string>();
    for (const std::string& event : events) {
      if (event != "[DONE]") content += Json::parse(event)["choices"][0]["delta"].value("content", "");
    }
    EXPECT_EQ(content, "alpha be");
    EXPECT_TRUE(within_10_s([this] { return idle(); }));
  }
  EXPECT_EQ(loop_->stats().requests_finished[static_cast<int>(scheduler::FinishReason::kCancelled)], 2);
}

// Not all stop tokens are marked special.
TEST_F(ServerTest, StopTokensAreNotShown) {
  stop_tokens_ = {3051};
  start();
  say("call</tool_call>more");
  const Json json = Json::parse(chat(chat_body()).body);
  EXPECT_EQ(json["choices"][0]["message"]["content"], "call");
  EXPECT_EQ(json["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(json["usage"]["completion_tokens"], tokenizer_->encode("call").size() + 1);
}

TEST_F(ServerTest, LogprobsCoverEveryToken) {
  start();
  say("think</think>\n\n世界");
  for (const bool stream : {false, true}) {
    const TestResponse response =
        chat(chat_body({{"logprobs", true}, {"top_logprobs", 3}, {"stream", stream}}, "hi", /*thinking=*/true));
    Json entries = Json::array();
    if (stream) {
      for (const std::string& event : events_of(response.body)) {
        if (event == "[DONE]") continue;
        const Json logprobs = Json::parse(event)["choices"][0]["logprobs"];
        if (!logprobs.is_null()) entries.insert(entries.end(), logprobs["content"].begin(), logprobs["content"].end());
      }
    } else {
      entries = Json::parse(response.body)["choices"][0]["logprobs"]["content"];
    }
    ASSERT_EQ(entries.size(), reply_.size() + 1);  // the stop token too
    std::string bytes;
    for (size_t i = 0; i < entries.size(); ++i) {
      ASSERT_EQ(entries[i]["top_logprobs"].size(), 3u);
      EXPECT_EQ(entries[i]["top_logprobs"][0]["logprob"], entries[i]["logprob"]);
      EXPECT_LT(entries[i]["logprob"].get<double>(), 0);
      for (const Json& byte : entries[i]["bytes"]) bytes += static_cast<char>(byte.get<int>());
    }
    EXPECT_EQ(bytes, "think</think>\n\n世界<|im_end|>");
    EXPECT_EQ(entries.back()["token"], "<|im_end|>");
  }
  const Json none = Json::parse(chat(chat_body({{"logprobs", true}})).body)["choices"][0]["logprobs"]["content"];
  EXPECT_EQ(none[0]["top_logprobs"], Json::array());
}

// Which parameters reach the engine, seen by the script.
TEST_F(ServerTest, SamplingDefaultsAndOverrides) {
  std::mutex mutex;
  std::vector<ops::SampleParams> seen;
  fake_.script = [&](const std::vector<int32_t>&, const ops::SampleParams& params) {
    const std::lock_guard lock(mutex);
    seen.push_back(params);
    return kImEnd;
  };
  ServerOptions options;
  options.sampling = {true, 0.6f, 20, 0.95f, 0.0f};
  start(options);
  chat(chat_body());
  chat(chat_body());
  chat(chat_body({{"temperature", 0}, {"top_k", 3}, {"top_p", 0.5}, {"min_p", 0.25}, {"seed", 9}}));
  ASSERT_EQ(seen.size(), 3u);
  EXPECT_EQ(seen[0].temperature, 0.6f);
  EXPECT_EQ(seen[0].top_k, 20);
  EXPECT_EQ(seen[0].top_p, 0.95f);
  EXPECT_NE(seen[0].seed, seen[1].seed);
  EXPECT_EQ(seen[2].temperature, 0.0f);
  EXPECT_EQ(seen[2].top_k, 3);
  EXPECT_EQ(seen[2].top_p, 0.5f);
  EXPECT_EQ(seen[2].min_p, 0.25f);
  EXPECT_EQ(seen[2].seed, 9u);
}

TEST_F(ServerTest, GreedyWhereTheModelDoesNotSample) {
  std::atomic<float> temperature = -1;
  fake_.script = [&](const std::vector<int32_t>&, const ops::SampleParams& params) {
    temperature = params.temperature;
    return kImEnd;
  };
  ServerOptions options;
  options.sampling = {false, 0.6f, 20, 0.95f, 0.0f};
  start(options);
  chat(chat_body());
  EXPECT_EQ(temperature, 0.0f);
  chat(chat_body({{"temperature", 0.7}}));
  EXPECT_EQ(temperature, 0.7f);
}

TEST_F(ServerTest, RefusedRequests) {
  start();
  const auto error_of = [this](const std::string& body, int status) {
    const TestResponse response = chat(body);
    EXPECT_EQ(response.status, status) << response.body;
    return Json::parse(response.body)["error"];
  };
  EXPECT_EQ(error_of("{", 400)["code"], "invalid_json");
  EXPECT_EQ(error_of(chat_body({{"max_tokens", 0}}), 400)["param"], "max_tokens");
  EXPECT_EQ(error_of(chat_body({{"messages", Json::array()}}), 400)["param"], "messages");
  const Json unknown = error_of(chat_body({{"model", "gpt"}}), 404);
  EXPECT_EQ(unknown["code"], "model_not_found");
  EXPECT_EQ(unknown["type"], "not_found_error");
  EXPECT_EQ(unknown["param"], "model");
  const Json role = error_of(chat_body({{"messages", {{{"role", "alien"}, {"content", "x"}}}}}), 400);
  EXPECT_EQ(role["param"], "messages[0].role");
  std::string long_text;
  for (int i = 0; i < 1000; ++i) long_text += "word ";
  const Json too_long = error_of(chat_body({}, long_text), 400);
  EXPECT_EQ(too_long["code"], "context_length_exceeded");
  EXPECT_EQ(too_long["param"], "messages");
  const std::string message = too_long["message"];
  EXPECT_NE(message.find(std::to_string(kContext)), std::string::npos) << message;
  const size_t prompt_tokens = tokenizer_
                                   ->encode("<|im_start|>user\n" + long_text.substr(0, long_text.size() - 1) +
                                            "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n")
                                   .size();
  EXPECT_NE(message.find(std::to_string(prompt_tokens)), std::string::npos) << message;
  say("ok");
  EXPECT_EQ(chat(chat_body({{"model", "org/alias"}})).status, 200);
  EXPECT_EQ(loop_->stats().requests_total, 1);
}

TEST_F(ServerTest, RoutesAndMethods) {
  start();
  TestClient client(server_->port());
  const auto status = [&](const char* method, const char* target) { return client.call(method, target).status; };
  EXPECT_EQ(status("GET", "/nothing"), 404);
  EXPECT_EQ(status("POST", "/v1/embeddings"), 404);
  EXPECT_EQ(status("GET", kChat), 405);
  EXPECT_EQ(status("DELETE", "/v1/models"), 405);
  EXPECT_EQ(status("HEAD", "/health"), 200);
  EXPECT_EQ(client.call("PUT", kChat).headers.at("allow"), "POST, OPTIONS");
  const TestResponse options = client.call("OPTIONS", kChat);
  EXPECT_EQ(options.status, 204);
  EXPECT_EQ(options.headers.at("allow"), "POST, OPTIONS");
  EXPECT_EQ(get("/nothing", 404)["error"]["type"], "not_found_error");
  EXPECT_EQ(get("/health?verbose=1")["status"], "alive");
  EXPECT_EQ(get("/ready")["status"], "ready");
  EXPECT_EQ(get("/")["name"], "assay");
  EXPECT_EQ(get("/")["endpoints"].size(), 14u);
}

TEST_F(ServerTest, Models) {
  start();
  const Json list = get("/v1/models");
  EXPECT_EQ(list["object"], "list");
  ASSERT_EQ(list["data"].size(), 2u);
  EXPECT_EQ(list["data"][0]["id"], "pocket");
  EXPECT_EQ(list["data"][0]["object"], "model");
  EXPECT_EQ(list["data"][0]["max_model_len"], kContext);
  EXPECT_EQ(list["data"][0]["meta"]["n_ctx"], kContext);
  EXPECT_EQ(get("/v1/models/pocket")["id"], "pocket");
  EXPECT_EQ(get("/v1/models/org/alias")["id"], "org/alias");
  EXPECT_EQ(get("/v1/models/org%2Falias")["id"], "org/alias");
  EXPECT_EQ(get("/v1/models/other", 404)["error"]["code"], "model_not_found");
}

TEST_F(ServerTest, LoadingAnswers503ButIsAlive) {
  start_unready();
  server_->set_loading_progress("layer 3 of 6");
  EXPECT_EQ(get("/health")["status"], "alive");
  EXPECT_EQ(get("/ready", 503)["error"]["message"], "Loading model");
  for (const auto& [method, target] : {std::pair{"POST", kChat}, {"GET", "/v1/models"}, {"GET", "/v1/models/pocket"}}) {
    const TestResponse response = TestClient(server_->port()).call(method, target, chat_body());
    EXPECT_EQ(response.status, 503);
    EXPECT_EQ(response.headers.at("retry-after"), "1");
    EXPECT_EQ(Json::parse(response.body)["error"],
              Json::parse(R"({"message":"Loading model","type":"unavailable_error","param":null,"code":503,)"
                          R"("progress":"layer 3 of 6"})"));
  }
  EXPECT_EQ(TestClient(server_->port()).call("GET", "/metrics").status, 200);
  make_ready();
  EXPECT_EQ(get("/ready")["status"], "ready");
  say("ok");
  EXPECT_EQ(chat(chat_body()).status, 200);
}

TEST_F(ServerTest, LeavingCancels) {
  fake_.latency_us = 2000;
  start();
  reply_.assign(kContext, 100);
  for (const bool stream : {true, false}) {
    TestClient client(server_->port());
    client.send(TestClient::request("POST", kChat, chat_body({{"stream", stream}})));
    ASSERT_TRUE(within_10_s([this] { return loop_->stats().running == 1; }));
    const int64_t steps_before = loop_->stats().steps_total;
    client.close();
    EXPECT_TRUE(within_10_s([this] { return idle(); }));
    EXPECT_LT(loop_->stats().steps_total - steps_before, 50) << "of about 500";
  }
  EXPECT_EQ(loop_->stats().requests_finished[static_cast<int>(scheduler::FinishReason::kCancelled)], 2);
  const std::string metrics = TestClient(server_->port()).call("GET", "/metrics").body;
  EXPECT_NE(metrics.find("finished_reason=\"abort\",model_name=\"pocket\"} 2\n"), std::string::npos) << metrics;
}

TEST_F(ServerTest, FullQueueAnswers429) {
  fake_.latency_us = 2000;
  loop_options_ = {.max_queued = 1, .max_running = 1};
  start();
  reply_.assign(kContext, 100);
  TestClient first(server_->port()), second(server_->port());
  first.send(TestClient::request("POST", kChat, chat_body()));
  ASSERT_TRUE(within_10_s([this] { return loop_->stats().requests_total == 1; }));
  second.send(TestClient::request("POST", kChat, chat_body()));
  ASSERT_TRUE(within_10_s([this] { return loop_->stats().requests_total == 2; }));
  const TestResponse refused = chat(chat_body({{"stream", true}}));
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.headers.at("retry-after"), "1");
  EXPECT_EQ(Json::parse(refused.body)["error"]["type"], "rate_limit_error");
}

TEST_F(ServerTest, DrainFinishesWhatRuns) {
  fake_.latency_us = 2000;
  start();
  reply_.assign(50, tokenizer_->encode("x")[0]);
  TestClient running(server_->port());
  running.send(TestClient::request("POST", kChat, chat_body({{"stream", true}})));
  ASSERT_TRUE(within_10_s([this] { return loop_->stats().running == 1; }));
  std::atomic<bool> drained = false;
  std::thread drain([&] { drained = server_->drain(10'000'000); });
  EXPECT_TRUE(within_10_s([this] { return TestClient(server_->port()).call("GET", "/ready").status == 503; }));
  EXPECT_EQ(get("/health")["status"], "alive");
  EXPECT_EQ(chat(chat_body()).status, 503);
  const auto events = events_of(running.read_response().body);
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(Json::parse(events[events.size() - 2])["choices"][0]["finish_reason"], "stop");
  drain.join();
  EXPECT_TRUE(drained);
}

TEST_F(ServerTest, DrainGivesUpInTime) {
  fake_.latency_us = 5000;
  start();
  reply_.assign(kContext, 100);
  TestClient running(server_->port());
  running.send(TestClient::request("POST", kChat, chat_body({{"stream", true}})));
  ASSERT_TRUE(within_10_s([this] { return loop_->stats().running == 1; }));
  EXPECT_FALSE(server_->drain(50'000));
  server_->stop();
  EXPECT_TRUE(within_10_s([this] { return idle(); }));
}

TEST_F(ServerTest, NumbersThatAreNotFinite) {
  start_unready();
  make_ready();
  say("some text of a few tokens");
  const int32_t im_start = tokenizer_->encode("<|im_start|>")[0];
  server_->stop();
  loop_.reset();
  server_.reset();
  fake_.fault_prompt_token = im_start;
  fake_.fault_counter = 2;
  start();
  const TestResponse whole = chat(chat_body());
  EXPECT_EQ(whole.status, 500);
  const Json error = Json::parse(whole.body)["error"];
  EXPECT_EQ(error["type"], "numerical_error");
  EXPECT_EQ(error["retryable"], true);
  const auto events =
      events_of(chat(chat_body({{"stream", true}, {"stream_options", {{"include_usage", true}}}})).body);
  ASSERT_GE(events.size(), 3u);
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(Json::parse(events[events.size() - 2])["error"]["type"], "numerical_error");
  for (const std::string& event : events) EXPECT_EQ(event.find("\"usage\""), std::string::npos);
}

// One word, or all line ends: nothing in a prompt takes more than linear time.
TEST_F(ServerTest, PromptsOfAMegabyteAreRefusedWithBothNumbers) {
  start();
  for (const char c : {'a', '\n'}) {
    const TestResponse refused = chat(chat_body(nullptr, "." + std::string(1 << 20, c) + "."));
    EXPECT_EQ(refused.status, 400);
    const Json error = Json::parse(refused.body)["error"];
    EXPECT_EQ(error["code"], "context_length_exceeded");
    EXPECT_TRUE(error["message"].get<std::string>().starts_with("The model's context holds 512 tokens")) << error;
  }
}

// Nothing is generated, so nothing needs to be left of the context.
TEST_F(ServerTest, ScoresAPromptThatFillsTheContext) {
  start();
  const auto scored = [&](int32_t prompt_tokens, const Json& how) {
    Json body{{"prompt", std::vector<int32_t>(static_cast<size_t>(prompt_tokens), 65)}, {"max_tokens", 0}};
    body.update(how);
    return TestClient(server_->port()).call("POST", "/v1/completions", body.dump());
  };
  for (const Json& how : {Json{{"echo", true}, {"logprobs", 0}}, Json{{"prompt_logprobs", 0}}, Json{{"echo", true}}}) {
    const TestResponse whole = scored(kContext, how);
    ASSERT_EQ(whole.status, 200) << whole.body;
    const Json answer = Json::parse(whole.body);
    EXPECT_EQ(answer["usage"]["prompt_tokens"], kContext);
    EXPECT_EQ(answer["usage"]["completion_tokens"], 0);
    const Json& choice = answer["choices"][0];
    EXPECT_EQ(choice["finish_reason"], "length");
    if (how.contains("logprobs")) {
      EXPECT_EQ(choice["logprobs"]["token_logprobs"].size(), kContext);
    }
    if (how.contains("prompt_logprobs")) {
      EXPECT_EQ(choice["prompt_logprobs"].size(), kContext);
    }
    const Json error = Json::parse(scored(kContext + 1, how).body)["error"];
    EXPECT_EQ(error["code"], "context_length_exceeded");
    EXPECT_EQ(error["message"], "The model's context holds 512 tokens; the prompt has 513 tokens");
  }
}

// Half a character pair, as JSON can spell it, is no text: refused, never passed on.
TEST_F(ServerTest, LoneSurrogatesAreRefused) {
  start();
  for (const char* half : {"\\ud800", "\\udfff", "\\ud83d x", "\\ude00\\ud83d"}) {
    const std::string body = fmt::format(R"({{"messages":[{{"role":"user","content":"a{}b"}}]}})", half);
    const TestResponse refused = chat(body);
    EXPECT_EQ(refused.status, 400) << half;
    EXPECT_EQ(Json::parse(refused.body)["error"]["type"], "invalid_request_error");
  }
  say("x");
  EXPECT_EQ(chat(R"({"messages":[{"role":"user","content":"a\ud83d\ude00b"}]})").status, 200);
}

TEST_F(ServerTest, RequestsEndAtTheTimeLimit) {
  fake_.latency_us = 2000;
  ServerOptions options;
  options.request_timeout_ms = 100;
  start(options);
  reply_.assign(kContext, 100);
  const TestResponse whole = chat(chat_body());
  EXPECT_EQ(whole.status, 504);
  EXPECT_EQ(whole.headers.at("x-should-retry"), "false");
  const Json error = Json::parse(whole.body)["error"];
  EXPECT_EQ(error["type"], "timeout_error");
  EXPECT_EQ(error["code"], "request_timeout");
  EXPECT_EQ(error["message"], "The request was not done within this server's limit of 0.1 s");
  const auto events = events_of(chat(chat_body({{"stream", true}})).body);
  ASSERT_GE(events.size(), 3u);
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(Json::parse(events[events.size() - 2])["error"]["type"], "timeout_error");
  EXPECT_TRUE(within_10_s([this] { return idle(); }));
  EXPECT_EQ(loop_->stats().requests_finished[static_cast<int>(scheduler::FinishReason::kDeadline)], 2);
  reply_.assign(3, 100);
  EXPECT_EQ(chat(chat_body()).status, 200);
}

TEST_F(ServerTest, SilentStreamIsKeptAlive) {
  fake_.latency_us = 300'000;
  ServerOptions options;
  options.keep_alive_ms = 50;
  start(options);
  say("x");
  const TestResponse response = chat(chat_body({{"stream", true}}));
  EXPECT_NE(response.body.find("\n\n: keep-alive\n\n: keep-alive\n\n"), std::string::npos) << response.body;
  EXPECT_TRUE(response.body.ends_with("data: [DONE]\n\n"));
}

TEST_F(ServerTest, ManyClientsSomeLeaving) {
  fake_.latency_us = 300;
  loop_options_.max_running = 8;
  start();
  const std::string expected = "one two three four five six seven eight nine ten";
  say(expected);
  std::atomic<int> right = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 48; ++i) {
    threads.emplace_back([&, i] {
      TestClient client(server_->port());
      client.send(TestClient::request("POST", kChat, chat_body({{"stream", true}}, "question " + std::to_string(i))));
      if (i % 3 == 0) {
        client.read_head();
        client.read_chunk();
        return client.close();
      }
      std::string content;
      for (const std::string& event : events_of(client.read_response().body)) {
        if (event != "[DONE]") content += Json::parse(event)["choices"][0]["delta"].value("content", "");
      }
      if (content == expected) ++right;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(right, 32);
  EXPECT_TRUE(within_10_s([this] { return idle(); }));
  EXPECT_TRUE(within_10_s([this] {
    return TestClient(server_->port())
               .call("GET", "/metrics")
               .body.find("assay:kv_pages_used{model_name=\"pocket\"} 0\n") != std::string::npos;
  }));
}

TEST_F(ServerTest, StopWithRequestsInFlight) {
  fake_.latency_us = 1000;
  start();
  reply_.assign(kContext, 100);
  std::vector<std::unique_ptr<TestClient>> clients;
  for (int i = 0; i < 16; ++i) {
    clients.push_back(std::make_unique<TestClient>(server_->port()));
    clients.back()->send(TestClient::request("POST", kChat, chat_body({{"stream", i % 2 == 0}})));
  }
  ASSERT_TRUE(within_10_s([this] { return loop_->stats().running > 4; }));
  server_.reset();  // the loop still runs
  EXPECT_TRUE(within_10_s([this] { return idle(); }));
}

TEST_F(ServerTest, BodyLimit) {
  ServerOptions options;
  options.http.max_body_bytes = 10'000;
  start(options);
  EXPECT_EQ(chat(chat_body({}, std::string(20'000, 'x'))).status, 413);
  EXPECT_EQ(chat(chat_body({}, std::string(5'000, '['))).status, 400);
}

TEST(ServerStart, PortInUseIsAnError) {
  ServerOptions options;
  options.port = 0;
  const auto first = Server::start(options);
  ASSERT_TRUE(first.ok());
  options.port = (*first)->port();
  const auto second = Server::start(options);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().kind, ErrorKind::kIo);
}

}  // namespace
}  // namespace assay::server

#include "server/chat_response.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace assay::server {
namespace {

using Json = nlohmann::ordered_json;

const CompletionHead kHead{"chatcmpl-7f", 1790000000, "m", "eng-1"};

ops::SampleResult sampled(int32_t token, float logprob) {
  ops::SampleResult result;
  result.token = token;
  result.logprob = logprob;
  result.top_count = 2;
  result.top_ids[0] = token;
  result.top_logprobs[0] = logprob;
  result.top_ids[1] = 1;
  result.top_logprobs[1] = -std::numeric_limits<float>::infinity();
  return result;
}

std::string_view bytes_of(int32_t id) { return id == 0 ? "2" : std::string_view("\xe2\x82", 2); }

ChatChoice choice_of(const std::string& reasoning, const std::string& content, const ChoiceFinish& finish,
                     const LogprobList* logprobs = nullptr) {
  ChatChoice choice;
  choice.reasoning = reasoning;
  choice.content = content;
  choice.finish = finish;
  choice.parts.logprobs = logprobs;
  return choice;
}

TEST(ChatResponse, WholeCompletion) {
  const ops::SampleResult tokens[] = {sampled(0, -0.5f)};
  const LogprobList list{tokens, bytes_of};
  const std::string body = completion_body(kHead, {choice_of("Add.", "2", {"stop", {}, {}}, &list)}, Usage{9, 3, 2});
  EXPECT_EQ(
      body,
      R"({"id":"chatcmpl-7f","object":"chat.completion","created":1790000000,"model":"m","system_fingerprint":"eng-1",)"
      R"("choices":[{"index":0,"message":{"role":"assistant","content":"2","refusal":null,"reasoning_content":"Add.",)"
      R"("reasoning":"Add.","tool_calls":[]},"logprobs":{"content":[{"token":"2","logprob":-0.5,"bytes":[50],)"
      R"("top_logprobs":[{"token":"2","logprob":-0.5,"bytes":[50]},{"token":"�","logprob":-9999.0,"bytes":[226,130]}]}]},)"
      R"("finish_reason":"stop","stop_reason":null}],"usage":{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12,)"
      R"("prompt_tokens_details":{"cached_tokens":0},"completion_tokens_details":{"reasoning_tokens":2}}})");
}

TEST(ChatResponse, WithoutReasoningAndLogprobs) {
  const Json json = Json::parse(completion_body(kHead, {choice_of("", "2", {"stop", "END", {}})}, Usage{9, 1, 0}));
  const Json& choice = json["choices"][0];
  EXPECT_TRUE(choice["message"]["reasoning_content"].is_null());
  EXPECT_TRUE(choice["message"]["reasoning"].is_null());
  EXPECT_TRUE(choice["logprobs"].is_null());
  EXPECT_EQ(choice["stop_reason"], "END");
}

TEST(ChatResponse, Chunks) {
  const std::string head = R"({"id":"chatcmpl-7f","object":"chat.completion.chunk","created":1790000000,"model":"m",)"
                           R"("system_fingerprint":"eng-1","choices":[)";
  EXPECT_EQ(role_chunk(kHead, {}),
            head + R"({"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]})");
  EXPECT_EQ(reasoning_chunk(kHead, "Add.", {}),
            head + R"({"index":0,"delta":{"reasoning_content":"Add.","reasoning":"Add."},"logprobs":null,)"
                   R"("finish_reason":null}]})");
  EXPECT_EQ(content_chunk(kHead, "2", {}),
            head + R"({"index":0,"delta":{"content":"2"},"logprobs":null,"finish_reason":null}]})");
  EXPECT_EQ(finish_chunk(kHead, {"length", {}, {}}, {}),
            head + R"({"index":0,"delta":{},"logprobs":null,"finish_reason":"length","stop_reason":null}]})");
  EXPECT_EQ(usage_chunk(kHead, Usage{40, 12, 3}),
            head +
                R"(],"usage":{"prompt_tokens":40,"completion_tokens":12,"total_tokens":52,)"
                R"("prompt_tokens_details":{"cached_tokens":0},"completion_tokens_details":{"reasoning_tokens":3}}})");
  EXPECT_EQ(sse_event("x"), "data: x\n\n");
}

TEST(ChatResponse, ToolCalls) {
  ChatChoice choice = choice_of("", "", {"tool_calls", {}, {}});
  choice.tool_calls = {{"call_1", "add", "{\"x\": 1}"}};
  const Json json = Json::parse(completion_body(kHead, {choice}, Usage{9, 1, 0}));
  const Json& message = json["choices"][0]["message"];
  EXPECT_TRUE(message["content"].is_null());
  EXPECT_EQ(message["tool_calls"].dump(),
            R"([{"id":"call_1","type":"function","function":{"name":"add","arguments":"{\"x\": 1}"}}])");
  EXPECT_EQ(Json::parse(tool_call_chunk(kHead, 1, "call_1", "add", {2}))["choices"][0].dump(),
            R"({"index":2,"delta":{"tool_calls":[{"index":1,"id":"call_1","type":"function",)"
            R"("function":{"name":"add","arguments":""}}]},"logprobs":null,"finish_reason":null})");
  EXPECT_EQ(Json::parse(arguments_chunk(kHead, 1, "{\"x", {}))["choices"][0]["delta"].dump(),
            R"({"tool_calls":[{"index":1,"function":{"arguments":"{\"x"}}]})");
}

TEST(ChatResponse, LogprobsAreAlwaysNumbers) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float logprob : {infinity, -infinity, std::nanf(""), -1e30f, -9999.0f}) {
    const ops::SampleResult tokens[] = {sampled(0, logprob)};
    const LogprobList list{tokens, bytes_of};
    const std::string body = content_chunk(kHead, "2", {0, &list});
    ASSERT_TRUE(Json::accept(body)) << body;
    EXPECT_EQ(Json::parse(body)["choices"][0]["logprobs"]["content"][0]["logprob"], -9999.0) << logprob;
  }
}

TEST(ChatResponse, ErrorBodies) {
  EXPECT_EQ(error_body(invalid_field("max_tokens", "max_tokens must be >= 1")),
            R"({"error":{"message":"max_tokens must be >= 1","type":"invalid_request_error","param":"max_tokens",)"
            R"("code":"invalid_value"}})");
  EXPECT_EQ(error_body(unavailable("Loading model")),
            R"({"error":{"message":"Loading model","type":"unavailable_error","param":null,"code":503}})");
  EXPECT_TRUE(Json::accept(error_body(invalid_field("a\xff", "b\xff\n\""))));
}

}  // namespace
}  // namespace assay::server

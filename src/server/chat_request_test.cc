#include "server/chat_request.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>

namespace assay::server {
namespace {

using Json = nlohmann::ordered_json;

std::string with(const std::string& members) {
  return R"({"messages":[{"role":"user","content":"hi"}])" + (members.empty() ? "" : "," + members) + "}";
}

ChatRequest accepted(const std::string& body) {
  ChatRequest request;
  const auto refused = parse_chat_request(body, request);
  EXPECT_FALSE(refused) << body << ": " << (refused ? refused->message : "");
  return request;
}

TEST(ChatRequest, ReadsEveryField) {
  const ChatRequest request = accepted(with(
      R"("model":"pocket","max_tokens":7,"temperature":0.5,"top_p":0.9,"top_k":40,"min_p":0.1,"seed":42,)"
      R"("stop":["a","b"],"logprobs":true,"top_logprobs":5,"stream":true,"stream_options":{"include_usage":true})"));
  EXPECT_EQ(request.model, "pocket");
  EXPECT_EQ(request.max_tokens, 7);
  EXPECT_EQ(request.temperature, 0.5f);
  EXPECT_EQ(request.top_p, 0.9f);
  EXPECT_EQ(request.top_k, 40);
  EXPECT_EQ(request.min_p, 0.1f);
  EXPECT_EQ(request.seed, 42u);
  EXPECT_EQ(request.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(request.logprobs);
  EXPECT_EQ(request.top_logprobs, 5);
  EXPECT_TRUE(request.stream);
  EXPECT_TRUE(request.include_usage);
  EXPECT_TRUE(request.ignored_fields.empty());
}

TEST(ChatRequest, LeftOutAndNullAreTheSame) {
  for (const std::string& body :
       {with(""), with(R"("max_tokens":null,"temperature":null,"top_p":null,"top_k":null,"min_p":null,"seed":null,)"
                       R"("stop":null,"logprobs":null,"top_logprobs":null,"stream":null,"stream_options":null,)"
                       R"("tools":null,"n":null,"chat_template_kwargs":null,"model":null)")}) {
    const ChatRequest request = accepted(body);
    EXPECT_FALSE(request.max_tokens || request.temperature || request.top_p || request.top_k || request.min_p ||
                 request.seed);
    EXPECT_TRUE(request.stop.empty());
    EXPECT_FALSE(request.logprobs || request.stream || request.include_usage);
    EXPECT_EQ(*request.context,
              Json::parse(R"({"messages":[{"role":"user","content":"hi"}],"add_generation_prompt":true})"));
  }
}

TEST(ChatRequest, NewerNameOfMaxTokensWins) {
  EXPECT_EQ(accepted(with(R"("max_completion_tokens":3,"max_tokens":9)")).max_tokens, 3);
  EXPECT_EQ(accepted(with(R"("max_completion_tokens":3)")).max_tokens, 3);
  EXPECT_EQ(accepted(with(R"("max_completion_tokens":null,"max_tokens":9)")).max_tokens, 9);
}

TEST(ChatRequest, TemplateContext) {
  const ChatRequest request = accepted(
      R"({"messages":[{"role":"developer","content":[{"type":"text","text":"be brief"}]},{"role":"user","content":"hi"},)"
      R"({"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function",)"
      R"("function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c","content":"1"}],)"
      R"("tools":[{"type":"function","function":{"name":"f","parameters":{}}}],)"
      R"("chat_template_kwargs":{"enable_thinking":false,"style":{"a":[1]}}})");
  const Json& context = *request.context;
  EXPECT_EQ(context["messages"].size(), 4u);
  EXPECT_EQ(context["messages"][0]["role"], "system");
  EXPECT_EQ(context["messages"][2]["tool_calls"][0]["function"]["name"], "f");
  EXPECT_EQ(context["tools"][0]["function"]["name"], "f");
  EXPECT_EQ(context["enable_thinking"], false);
  EXPECT_EQ(context["style"]["a"][0], 1);
  EXPECT_FALSE(accepted(with(R"("tools":[])")).context->contains("tools"));
}

TEST(ChatRequest, UnknownFieldsAreNamed) {
  EXPECT_EQ(accepted(with(R"("bar":0,"foo":{"x":1},"user":"me")")).ignored_fields,
            (std::vector<std::string>{"bar", "foo"}));
}

TEST(ChatRequest, SeedAndTopKForms) {
  EXPECT_EQ(accepted(with(R"("seed":-1)")).seed, ~uint64_t{0});
  EXPECT_EQ(accepted(with(R"("seed":18446744073709551615)")).seed, ~uint64_t{0});
  EXPECT_EQ(accepted(with(R"("top_k":-1)")).top_k, 0);
  EXPECT_EQ(accepted(with(R"("stop":"x")")).stop, std::vector<std::string>{"x"});
}

const std::string kTool = R"("tools":[{"type":"function","function":{"name":"f"}}])";

TEST(ChatRequest, ToolChoice) {
  EXPECT_EQ(accepted(with("")).tool_choice, ToolChoice::kNone);
  EXPECT_EQ(accepted(with(R"("tool_choice":"auto")")).tool_choice, ToolChoice::kNone);
  const ChatRequest automatic = accepted(with(kTool));
  EXPECT_EQ(automatic.tool_choice, ToolChoice::kAuto);
  EXPECT_TRUE(automatic.tools->has("f"));
  EXPECT_TRUE(automatic.parallel_tool_calls);
  const ChatRequest none = accepted(with(kTool + R"(,"tool_choice":"none")"));
  EXPECT_EQ(none.tool_choice, ToolChoice::kNone);
  EXPECT_FALSE(none.context->contains("tools")) << "the template does not show tools that must not be called";
  EXPECT_EQ(none.tools, nullptr);
  EXPECT_EQ(accepted(with(kTool + R"(,"tool_choice":"required")")).tool_choice, ToolChoice::kRequired);
  const ChatRequest named = accepted(with(kTool + R"(,"tool_choice":{"type":"function","function":{"name":"f"}})"));
  EXPECT_EQ(named.tool_choice, ToolChoice::kNamed);
  EXPECT_EQ(named.tool_name, "f");
}

TEST(ChatRequest, ReadsTheFieldsOfPeers) {
  const ChatRequest request = accepted(
      with(R"("presence_penalty":1.5,"frequency_penalty":-2,"repetition_penalty":1.1,"logit_bias":{"7":-100,"8":2.5},)"
           R"("min_tokens":3,"ignore_eos":true,"stop_token_ids":[5,6],"include_stop_str_in_output":true,"n":3,)"
           R"("return_token_ids":true,"prompt_logprobs":2,"skip_special_tokens":false,"parallel_tool_calls":false,)"
           R"("response_format":{"type":"text"},"add_generation_prompt":false)"));
  EXPECT_EQ(request.presence_penalty, 1.5f);
  EXPECT_EQ(request.frequency_penalty, -2.0f);
  EXPECT_EQ(request.repetition_penalty, 1.1f);
  EXPECT_EQ(request.logit_bias, (std::vector<std::pair<int32_t, float>>{{7, -100.0f}, {8, 2.5f}}));
  EXPECT_EQ(request.min_tokens, 3);
  EXPECT_TRUE(request.ignore_eos && request.include_stop_str_in_output && request.return_token_ids);
  EXPECT_EQ(request.stop_token_ids, (std::vector<int32_t>{5, 6}));
  EXPECT_EQ(request.n, 3);
  EXPECT_EQ(request.prompt_logprobs, 2);
  EXPECT_FALSE(request.skip_special_tokens || request.parallel_tool_calls);
  EXPECT_EQ(request.context->at("add_generation_prompt"), false);
  EXPECT_TRUE(request.ignored_fields.empty());
}

TEST(ChatRequest, RefusalsNameTheField) {
  struct Case {
    std::string body;
    std::string param;
    std::string in_message;
  };
  std::string stops = R"("s")";
  for (int i = 0; i < 16; ++i) stops += R"(,"s")";
  const Case cases[] = {
      {"{}", "messages", "required"},
      {R"({"messages":"hi"})", "messages", "list"},
      {R"({"messages":[]})", "messages", "at least one"},
      {R"({"messages":null})", "messages", "list"},
      {R"({"messages":[1]})", "messages[0]", "object"},
      {R"({"messages":[{"content":"x"}]})", "messages[0].role", "required"},
      {R"({"messages":[{"role":1,"content":"x"}]})", "messages[0].role", "string"},
      {R"({"messages":[{"role":"alien","content":"x"}]})", "messages[0].role",
       "one of system, developer, user, assistant, tool, not alien"},
      {R"({"messages":[{"role":"user"}]})", "messages[0].content", "required"},
      {R"({"messages":[{"role":"user","content":5}]})", "messages[0].content", "number"},
      {R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]})",
       "messages[0].content[0].type", "image_url"},
      {R"({"messages":[{"role":"user","content":[{"type":"text"}]}]})", "messages[0].content[0].text", "string"},
      {R"({"messages":[{"role":"assistant","tool_calls":[{}]}]})", "messages[0].tool_calls[0].function", "object"},
      {with(R"("max_tokens":0)"), "max_tokens", ">= 1"},
      {with(R"("max_tokens":"5")"), "max_tokens", "integer"},
      {with(R"("max_tokens":1.5)"), "max_tokens", "an integer, not the number 1.5"},
      {with(R"("max_completion_tokens":-3)"), "max_completion_tokens", ">= 1"},
      {with(R"("max_tokens":9223372036854775808)"), "max_tokens", "<= 2147483647, not 9223372036854775808"},
      {with(R"("max_tokens":18446744073709551615)"), "max_tokens", "<= 2147483647, not 18446744073709551615"},
      {with(R"("max_tokens":-9223372036854775808)"), "max_tokens", ">= 1, not -9223372036854775808"},
      {with(R"("temperature":-0.1)"), "temperature", "0 to 2"},
      {with(R"("temperature":2.5)"), "temperature", "0 to 2"},
      {with(R"("temperature":"hot")"), "temperature", "number"},
      {with(R"("temperature":1e308)"), "temperature", "0 to 2"},
      {with(R"("top_p":1.01)"), "top_p", "0 to 1"},
      {with(R"("min_p":-1)"), "min_p", "0 to 1"},
      {with(R"("top_k":-2)"), "top_k", ">= -1"},
      {with(R"("seed":1.5)"), "seed", "integer"},
      {with(R"("stop":5)"), "stop", "string"},
      {with(R"("stop":["a",1])"), "stop", "string"},
      {with(R"("stop":"")"), "stop", "empty"},
      {with(R"("stop":[)" + stops + "]"), "stop", "at most 16"},
      {with(R"("stop":")" + std::string(5000, 'x') + "\""), "stop", "4096"},
      {with(R"("logprobs":1)"), "logprobs", "boolean"},
      {with(R"("top_logprobs":3)"), "top_logprobs", "logprobs"},
      {with(R"("logprobs":true,"top_logprobs":21)"), "top_logprobs", "<= 20"},
      {with(R"("stream":"yes")"), "stream", "boolean"},
      {with(R"("stream_options":{"include_usage":true})"), "stream_options", "stream"},
      {with(R"("stream":true,"stream_options":{"include_usage":1})"), "stream_options.include_usage", "boolean"},
      {with(R"("tools":{})"), "tools", "list"},
      {with(R"("tools":[{"type":"function"}])"), "tools[0].function", "object"},
      {with(R"("tools":[{"type":"web","function":{"name":"x"}}])"), "tools[0].type", "function"},
      {with(R"("tools":[{"type":"function","function":{"name":""}}])"), "tools[0].function.name", "empty"},
      {with(R"("n":129)"), "n", "<= 128"},
      {with(R"("n":0)"), "n", ">= 1"},
      {with(R"("n":"2")"), "n", "integer"},
      {with(R"("presence_penalty":2.5)"), "presence_penalty", "-2 to 2"},
      {with(R"("frequency_penalty":"x")"), "frequency_penalty", "number"},
      {with(R"("repetition_penalty":0)"), "repetition_penalty", "0.01 to 100"},
      {with(R"("logit_bias":[])"), "logit_bias", "object"},
      {with(R"("logit_bias":{"x":1})"), "logit_bias.x", "token id"},
      {with(R"("logit_bias":{"-1":1})"), "logit_bias.-1", "token id"},
      {with(R"("logit_bias":{"7":101})"), "logit_bias.7", "-100 to 100"},
      {with(R"("logit_bias":{"7":"1"})"), "logit_bias.7", "number"},
      {with(R"("min_tokens":-1)"), "min_tokens", ">= 0"},
      {with(R"("min_tokens":5,"max_tokens":4)"), "min_tokens", "max_tokens"},
      {with(R"("ignore_eos":1)"), "ignore_eos", "boolean"},
      {with(R"("stop_token_ids":5)"), "stop_token_ids", "list"},
      {with(R"("stop_token_ids":["5"])"), "stop_token_ids", "token ids"},
      {with(R"("stop_token_ids":[-5])"), "stop_token_ids", "no token id"},
      {with(R"("stop_token_ids":[18446744073709551615])"), "stop_token_ids", "no token id"},
      {with(R"("include_stop_str_in_output":"no")"), "include_stop_str_in_output", "boolean"},
      {with(R"("skip_special_tokens":0)"), "skip_special_tokens", "boolean"},
      {with(R"("return_token_ids":1)"), "return_token_ids", "boolean"},
      {with(R"("prompt_logprobs":21)"), "prompt_logprobs", "<= 20"},
      {with(R"("prompt_logprobs":1,"stream":true)"), "prompt_logprobs", "stream"},
      {with(R"("add_generation_prompt":1)"), "add_generation_prompt", "boolean"},
      {with(R"("response_format":"json")"), "response_format", "object"},
      {with(R"("response_format":{})"), "response_format.type", "string"},
      {with(R"("response_format":{"type":"json_object"})"), "response_format", "json_object"},
      {with(R"("response_format":{"type":"json_schema","json_schema":{}})"), "response_format", "not supported yet"},
      {with(R"("grammar":"root ::= x")"), "grammar", "not supported yet"},
      {with(R"("guided_json":{})"), "guided_json", "not supported yet"},
      {with(R"("structured_outputs":{})"), "structured_outputs", "not supported yet"},
      {with(R"("tool_choice":"required")"), "tool_choice", "needs tools"},
      {with(kTool + R"(,"tool_choice":"any")"), "tool_choice", "none, auto, required"},
      {with(kTool + R"(,"tool_choice":5)"), "tool_choice", "none, auto, required"},
      {with(kTool + R"(,"tool_choice":{"type":"function"})"), "tool_choice", "form"},
      {with(kTool + R"(,"tool_choice":{"type":"function","function":{"name":"g"}})"), "tool_choice", "not among"},
      {with(R"("parallel_tool_calls":"x")"), "parallel_tool_calls", "boolean"},
      {with(R"("functions":[{}])"), "functions", "tools"},
      {with(R"("model":3)"), "model", "string"},
      {with(R"("chat_template_kwargs":[])"), "chat_template_kwargs", "object"},
      {with(R"("chat_template_kwargs":{"messages":[]})"), "chat_template_kwargs.messages", "field"},
      {with(R"("chat_template_kwargs":{"enable_thinking":"no"})"), "chat_template_kwargs.enable_thinking", "boolean"},
  };
  for (const Case& item : cases) {
    ChatRequest request;
    const auto refused = parse_chat_request(item.body, request);
    ASSERT_TRUE(refused) << item.body;
    EXPECT_EQ(refused->status, 400) << item.body;
    EXPECT_EQ(refused->type, "invalid_request_error") << item.body;
    EXPECT_EQ(refused->param, item.param) << item.body;
    EXPECT_NE(refused->message.find(item.in_message), std::string::npos) << item.body << ": " << refused->message;
  }
}

TEST(ChatRequest, BadJsonIsRefused) {
  for (const std::string& body :
       {std::string(), std::string("{"), std::string("[]"), std::string("3"), std::string("\"x\""), std::string("null"),
        std::string("{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\xfe\"}]}"), std::string(100'000, '['),
        std::string(R"({"messages":[],"x":NaN})"), std::string(1, '\0')}) {
    ChatRequest request;
    const auto refused = parse_chat_request(body, request);
    ASSERT_TRUE(refused) << body.substr(0, 50);
    EXPECT_EQ(refused->status, 400);
    EXPECT_EQ(refused->code, "invalid_json");
    EXPECT_TRUE(Json::accept(error_body(*refused)));
  }
}

// Any bytes are accepted or refused, and either way what comes out can be used.
TEST(ChatRequest, MutatedBodiesNeverCrash) {
  const std::string seed_body =
      with(R"("model":"m","max_tokens":7,"stop":["a","b"],"logprobs":true,"top_logprobs":5,"stream":true,)"
           R"("stream_options":{"include_usage":true},"tools":[{"type":"function","function":{"name":"f"}}],)"
           R"("chat_template_kwargs":{"enable_thinking":false},"seed":-5,"temperature":1e0)");
  const std::string alphabet = R"({}[]",:0-9.eEtrufalsn\ )";
  std::mt19937 random(7);
  int accepted_count = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string body = seed_body;
    const int edits = 1 + static_cast<int>(random() % 4);
    for (int edit = 0; edit < edits; ++edit) {
      const size_t at = random() % body.size();
      switch (random() % 4) {
        case 0:
          body[at] = static_cast<char>(random());
          break;
        case 1:
          body[at] = alphabet[random() % alphabet.size()];
          break;
        case 2:
          body.erase(at, random() % 8);
          break;
        default:
          body.insert(at, body.substr(random() % body.size(), random() % 20));
          break;
      }
    }
    ChatRequest request;
    if (const auto refused = parse_chat_request(body, request)) {
      ASSERT_EQ(refused->status, 400);
      ASSERT_TRUE(Json::accept(error_body(*refused)));
    } else {
      ++accepted_count;
      ASSERT_TRUE(request.context->at("messages").is_array());
      ASSERT_FALSE(request.context->at("messages").empty());
      ASSERT_LE(request.top_logprobs, kMaxTopLogprobs);
      ASSERT_GE(request.max_tokens.value_or(1), 1);
    }
  }
  EXPECT_GT(accepted_count, 100);
}

}  // namespace
}  // namespace assay::server

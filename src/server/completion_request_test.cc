#include "server/completion_request.h"

#include <gtest/gtest.h>

#include <random>

namespace assay::server {
namespace {

CompletionRequest accepted(const std::string& body) {
  CompletionRequest request;
  const auto refused = parse_completion_request(body, request);
  EXPECT_FALSE(refused) << body << ": " << (refused ? refused->message : "");
  return request;
}

using Ids = std::vector<int32_t>;

TEST(CompletionRequest, FormsOfThePrompt) {
  EXPECT_EQ(std::get<std::string>(accepted(R"({"prompt":"hi"})").prompts.at(0)), "hi");
  EXPECT_EQ(std::get<Ids>(accepted(R"({"prompt":[1,2]})").prompts.at(0)), (Ids{1, 2}));
  const CompletionRequest texts = accepted(R"({"prompt":["a","b"]})");
  ASSERT_EQ(texts.prompts.size(), 2u);
  EXPECT_EQ(std::get<std::string>(texts.prompts[1]), "b");
  const CompletionRequest lists = accepted(R"({"prompt":[[1],[2,3]]})");
  ASSERT_EQ(lists.prompts.size(), 2u);
  EXPECT_EQ(std::get<Ids>(lists.prompts[1]), (Ids{2, 3}));
  EXPECT_EQ(accepted(R"({"prompt":["a",[1]]})").prompts.size(), 2u);
}

TEST(CompletionRequest, ReadsItsFields) {
  const CompletionRequest bare = accepted(R"({"prompt":"x"})");
  EXPECT_EQ(bare.max_tokens, 16);
  EXPECT_EQ(bare.best_of, 1);
  EXPECT_FALSE(bare.logprobs || bare.echo);
  const CompletionRequest full =
      accepted(R"({"prompt":"x","max_tokens":5,"echo":true,"logprobs":3,"n":2,"best_of":4,"seed":1,"what":1})");
  EXPECT_EQ(full.max_tokens, 5);
  EXPECT_TRUE(full.echo && full.logprobs);
  EXPECT_EQ(full.top_logprobs, 3);
  EXPECT_EQ(full.n, 2);
  EXPECT_EQ(full.best_of, 4);
  EXPECT_EQ(full.ignored_fields, std::vector<std::string>{"what"});
  const CompletionRequest scored = accepted(R"({"prompt":"x","max_tokens":0,"echo":true,"logprobs":0})");
  EXPECT_EQ(scored.max_tokens, 0);
  EXPECT_TRUE(scored.logprobs);
  EXPECT_EQ(accepted(R"({"prompt":"x","max_tokens":0,"prompt_logprobs":0})").max_tokens, 0);
  EXPECT_EQ(accepted(R"({"prompt":"x","n":3})").best_of, 3);
}

TEST(CompletionRequest, RefusalsNameTheField) {
  const struct {
    std::string members, param, in_message;
  } cases[] = {
      {R"("max_tokens":5)", "prompt", "required"},
      {R"("prompt":null)", "prompt", "required"},
      {R"("prompt":5)", "prompt", "list"},
      {R"("prompt":{})", "prompt", "list"},
      {R"("prompt":[])", "prompt", "empty"},
      {R"("prompt":[[]])", "prompt[0]", "at least one"},
      {R"("prompt":["a",5])", "prompt[1]", "string"},
      {R"("prompt":[1,"a"])", "prompt", "token ids"},
      {R"("prompt":[1.5])", "prompt", "token ids"},
      {R"("prompt":[-1])", "prompt", "no token id"},
      {R"("prompt":[99999999999])", "prompt", "no token id"},
      {R"("prompt":"x","max_tokens":0)", "max_tokens", ">= 1"},
      {R"("prompt":"x","echo":1)", "echo", "boolean"},
      {R"("prompt":"x","logprobs":true)", "logprobs", "integer"},
      {R"("prompt":"x","logprobs":21)", "logprobs", "<= 20"},
      {R"("prompt":"x","n":3,"best_of":2)", "best_of", "at least n"},
      {R"("prompt":"x","best_of":2,"stream":true)", "best_of", "stream"},
      {R"("prompt":"x","best_of":200)", "best_of", "<= 128"},
      {R"("prompt":"x","min_tokens":17)", "min_tokens", "max_tokens"},
      {R"("prompt":"x","suffix":"y")", "suffix", "not supported yet"},
      {R"("prompt":"x","response_format":{"type":"json_object"})", "response_format", "not supported yet"},
      {R"("prompt":"x","model":1)", "model", "string"},
  };
  for (const auto& item : cases) {
    CompletionRequest request;
    const auto refused = parse_completion_request("{" + item.members + "}", request);
    ASSERT_TRUE(refused) << item.members;
    EXPECT_EQ(refused->status, 400);
    EXPECT_EQ(refused->param, item.param) << item.members;
    EXPECT_NE(refused->message.find(item.in_message), std::string::npos) << refused->message;
  }
}

TEST(CompletionRequest, MutatedBodiesNeverCrash) {
  const std::string seed_body =
      R"({"prompt":[[1,2],"ab"],"max_tokens":7,"stop":["a"],"logprobs":2,"echo":true,"n":2,"best_of":3,)"
      R"("logit_bias":{"5":1},"stop_token_ids":[4],"min_tokens":1,"prompt_logprobs":1})";
  const std::string alphabet = R"({}[]",:0-9.eEtrufalsn\ )";
  std::mt19937 random(11);
  int accepted_count = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string body = seed_body;
    for (int edit = 1 + static_cast<int>(random() % 3); edit > 0; --edit) {
      const size_t at = random() % body.size();
      if (random() % 2 == 0) {
        body[at] = alphabet[random() % alphabet.size()];
      } else if (random() % 2 == 0) {
        body.erase(at, random() % 8);
      } else {
        body.insert(at, body.substr(random() % body.size(), random() % 20));
      }
      if (body.empty()) body = "{";
    }
    CompletionRequest request;
    if (const auto refused = parse_completion_request(body, request)) {
      ASSERT_EQ(refused->status, 400);
      continue;
    }
    ++accepted_count;
    ASSERT_FALSE(request.prompts.empty());
    ASSERT_GE(request.best_of, request.n);
    ASSERT_GE(request.max_tokens.value(), request.echo || request.prompt_logprobs ? 0 : 1);
  }
  EXPECT_GT(accepted_count, 100);
}

}  // namespace
}  // namespace assay::server

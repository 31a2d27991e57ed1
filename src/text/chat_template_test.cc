#include "text/chat_template.h"

#include <gtest/gtest.h>

#include "text/goldens_test_util.h"
#include "text/tokenizer.h"

namespace assay::text {
namespace {

using Json = nlohmann::ordered_json;

std::unique_ptr<ChatTemplate> pocket() {
  auto loaded = ChatTemplate::load(kPocket);
  return std::move(loaded).value();
}

// Every question of the evaluation set carries the prompt its reference rendered, and that prompt's length in tokens.
TEST(ChatTemplate, RendersEveryPromptOfTheEvaluationSet) {
  const auto chat_template = pocket();
  const auto tokenizer = Tokenizer::load(kPocket);
  ASSERT_TRUE(tokenizer.ok());
  std::istringstream lines(test_file("models/pocket/eval.jsonl"));
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const Json question = Json::parse(line);
    const auto prompt = chat_template->render({{"messages", question["messages"]},
                                               {"tools", question["tools"]},
                                               {"add_generation_prompt", true},
                                               {"enable_thinking", question["thinking"]}});
    ASSERT_TRUE(prompt.ok()) << question["id"] << prompt.error().message();
    ASSERT_EQ(*prompt, question["prompt"].get<std::string>()) << question["id"];
    ASSERT_EQ((*tokenizer)->encode(*prompt).size(), question["prompt_tokens"].get<size_t>()) << question["id"];
  }
  EXPECT_EQ(count, 1968);
}

void expect_golden(const Result<std::string>& rendered, const Json& golden) {
  if (golden.contains("output")) {
    ASSERT_TRUE(rendered.ok()) << golden << "\n" << rendered.error().message();
    EXPECT_EQ(*rendered, golden["output"].get<std::string>()) << golden;
    return;
  }
  ASSERT_FALSE(rendered.ok()) << golden << "\n" << *rendered;
  EXPECT_EQ(rendered.error().kind, ErrorKind::kInvalidArgument) << golden;
  if (golden.contains("raised")) {
    EXPECT_EQ(rendered.error().what, golden["raised"].get<std::string>()) << golden;
  }
}

TEST(ChatTemplate, EqualsTheGoldenConversations) {
  const auto goldens = test_json("tests/goldens/text/templates.json");
  ASSERT_GE(goldens.size(), 60u);
  const auto large = ChatTemplate::parse(test_file("tests/goldens/text/qwen35_style.jinja"));
  ASSERT_TRUE(large.ok()) << large.error().message();
  const auto small = pocket();
  for (const auto& golden : goldens) {
    const ChatTemplate& chat_template = golden["template"] == "pocket" ? *small : **large;
    expect_golden(chat_template.render(golden["context"]), golden);
  }
}

TEST(ChatTemplate, EqualsTheGoldenFeatures) {
  const auto goldens = test_json("tests/goldens/text/jinja.json");
  ASSERT_GE(goldens["cases"].size(), 150u);
  for (const auto& golden : goldens["cases"]) {
    const auto chat_template = ChatTemplate::parse(golden["template"].get<std::string>());
    if (!chat_template.ok()) {
      EXPECT_TRUE(golden.contains("fails")) << golden << "\n" << chat_template.error().message();
      continue;
    }
    expect_golden((*chat_template)->render(goldens["context"]), golden);
  }
}

std::string render(const std::string& source, const Json& context = Json::object()) {
  const auto chat_template = ChatTemplate::parse(source);
  if (!chat_template.ok()) return "error: " + chat_template.error().what;
  const auto rendered = (*chat_template)->render(context);
  return rendered.ok() ? *rendered : "error: " + rendered.error().what;
}

TEST(ChatTemplate, ParsesArgumentsThatAreJsonText) {
  const std::string source =
      "{% for c in messages[0].tool_calls %}{{ c.function.arguments | tojson }};{{ c.function.arguments is mapping }} "
      "{% endfor %}";
  const Json calls = {{{"function", {{"name", "f"}, {"arguments", "{\"b\": 1, \"a\": [true, null]}"}}}},
                      {{"function", {{"name", "f"}, {"arguments", "not json"}}}},
                      {{"function", {{"name", "f"}, {"arguments", "[1]"}}}}};
  EXPECT_EQ(render(source, {{"messages", {{{"role", "assistant"}, {"tool_calls", calls}}}}}),
            "{\"b\": 1, \"a\": [true, null]};True \"not json\";False \"[1]\";False ");
}

TEST(ChatTemplate, TakesSpecialTokensFromTheConfig) {
  // pocket's config has eos_token and pad_token, and bos_token null.
  const auto chat_template = pocket();
  const auto rendered = chat_template->render({{"messages", Json::array()}});
  ASSERT_FALSE(rendered.ok());
  EXPECT_EQ(rendered.error().what, "No messages provided.");
  EXPECT_EQ(ChatTemplate::load("no/such/directory").error().kind, ErrorKind::kCheckpoint);
  EXPECT_EQ(chat_template->render(Json(3)).error().kind, ErrorKind::kInvalidArgument);
}

TEST(ChatTemplate, SaysWhereATemplateIsWrong) {
  const auto bad = ChatTemplate::parse("line one\n{% if x %}\n{{ 1 + }}\n{% endif %}");
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.error().where, "chat template, line 3");
  const auto undefined = ChatTemplate::parse("a\nb {{ x.y }}");
  ASSERT_TRUE(undefined.ok());
  const auto rendered = (*undefined)->render(Json::object());
  ASSERT_FALSE(rendered.ok());
  EXPECT_EQ(rendered.error().message(), "chat template, line 2: 'x' is undefined");
  const auto silent = ChatTemplate::parse("{{ raise_exception('') }}");
  ASSERT_TRUE(silent.ok());
  EXPECT_EQ((*silent)->render(Json::object()).error().what, "the template refuses, and does not say why");
}

// Each of these ends with an error, soon, and without exhausting memory or the stack.
TEST(ChatTemplate, BoundsHostileTemplates) {
  const auto repeated = [](const std::string& text, int count) {
    std::string out;
    for (int i = 0; i < count; ++i) out += text;
    return out;
  };
  const std::string big_loop = "{% for a in range(99999) %}";
  const std::vector<std::string> hostile = {
      repeated(big_loop, 4) + "x" + repeated("{% endfor %}", 4),
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{% macro m(n) %}{{ n }}{{ m(n + 1) }}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
      "{% set ns = namespace(s='x') %}{% for i in range(99999) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}",
      "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(99999) %}{% set ns.s = ns.s.replace('x', 'xxxxxxxx') %}"
      "{% endfor %}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(99999) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
      "{% set ns = namespace(l=[1], m=[1]) %}{% for i in range(300) %}{% set ns.l = [ns.l, ns.l] %}"
      "{% set ns.m = [ns.m, ns.m] %}{% endfor %}{{ ns.l == ns.m }}",
      "{% set l = [1] %}{% set _ = l.append(l) %}{{ l }}",
      "{% set l = [1] %}{% set _ = l.append(l) %}{{ l | tojson }}",
      "{{ 'x' * 10000000000 }}",
      "{{ [1] * 10000000000 }}",
      "{{ range(100001) | length }}",
      "{{ 2 ** 100000000000 }}",
      "{{ 2 ** 127 }}",
      repeated("(", 100000),
      "{{ " + repeated("(", 100000) + "1" + repeated(")", 100000) + " }}",
      "{{ " + repeated("not ", 100000) + "1 }}",
      "{{ " + repeated("-", 100000) + "1 }}",
      "{{ " + repeated("[", 5000) + repeated("]", 5000) + " }}",
      "{{ 1" + repeated(" + 1", 100000) + " }}",
      "{{ a" + repeated(".b", 100000) + " }}",
      repeated("{% if 1 %}", 5000) + repeated("{% endif %}", 5000),
      "{% for a in range(99999) %}{{ 'x' * 100000 }}{% endfor %}",
      "{% set l = range(99999) | list %}{% for a in l %}{{ 7 in l }}{{ -1 in l }}{% endfor %}",
      "{{ strftime_now('%1000000d') }}",
  };
  for (const std::string& source : hostile) {
    const std::string out = render(source);
    if (source.starts_with("((")) {
      EXPECT_EQ(out, source);  // plain text
    } else {
      EXPECT_TRUE(out.starts_with("error: ")) << source.substr(0, 100) << "\n" << out.substr(0, 100);
    }
  }
}

// A byte that is no UTF-8 counts as U+FFFD, whose own encoding is longer.
TEST(ChatTemplate, StripsWholeCharactersOfAnyLength) {
  for (const auto& [method, left] :
       {std::pair("strip", "é€"), std::pair("lstrip", "é€ü😀"), std::pair("rstrip", "😀üé€")}) {
    const auto parsed = ChatTemplate::parse(std::string("{{ '😀üé€ü😀'.") + method + "('ü😀') }}");
    ASSERT_TRUE(parsed.ok()) << parsed.error().message();
    EXPECT_EQ((*parsed)->render(Json::object()).value(), left) << method;
  }
}

TEST(ChatTemplate, StripsBytesThatAreNotUtf8) {
  const std::string text = "'\xff\xff\xff\xff|\xff\xff'";
  for (const auto& [method, left] :
       {std::pair("strip", "|"), std::pair("lstrip", "|~~"), std::pair("rstrip", "~~~~|")}) {
    const auto parsed = ChatTemplate::parse("{{ " + text + "." + method + "('\xff') | replace('\xff', '~') }}");
    ASSERT_TRUE(parsed.ok()) << parsed.error().message();
    const auto rendered = (*parsed)->render(Json::object());
    ASSERT_TRUE(rendered.ok()) << rendered.error().message();
    EXPECT_EQ(*rendered, left) << method;
  }
  const auto all = ChatTemplate::parse("[{{ '\xff\xff'.strip('\xff') }}]");
  ASSERT_TRUE(all.ok());
  EXPECT_EQ((*all)->render(Json::object()).value(), "[]");
}

TEST(ChatTemplate, BoundsTheContextsDepth) {
  Json deep = 1;
  for (int i = 0; i < 5000; ++i) {
    Json outer = Json::array();
    outer.push_back(std::move(deep));
    deep = std::move(outer);
  }
  EXPECT_EQ(render("{{ x }}", {{"x", std::move(deep)}}), "error: nested too deeply");
}

TEST(ChatTemplate, RunsALongConversation) {
  Json messages = Json::array();
  for (int i = 0; i < 3000; ++i) {
    messages.push_back({{"role", i % 2 ? "assistant" : "user"}, {"content", std::string(500, 'x')}});
  }
  const auto rendered = pocket()->render({{"messages", messages}, {"add_generation_prompt", true}});
  ASSERT_TRUE(rendered.ok()) << rendered.error().message();
  EXPECT_GT(rendered->size(), 1'500'000u);
}

TEST(ChatTemplate, AppendsToLists) {
  EXPECT_EQ(render("{% set l = [1] %}{% set _ = l.append('b') %}{{ l }}{{ l | length }}"), "[1, 'b']2");
}

TEST(ChatTemplate, TellsTheDate) {
  const std::string year = render("{{ strftime_now('%Y') }}");
  EXPECT_EQ(year.size(), 4u);
  EXPECT_GE(std::stoi(year), 2024);
}

}  // namespace
}  // namespace assay::text

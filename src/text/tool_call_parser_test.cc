#include "text/tool_call_parser.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

namespace assay::text {
namespace {

using Json = nlohmann::ordered_json;

std::shared_ptr<const ToolSchemas> schemas() {
  return std::make_shared<const ToolSchemas>(Json::parse(R"([
    {"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{
      "s":{"type":"string"},"i":{"type":"integer"},"n":{"type":"number"},"b":{"type":"boolean"},"o":{"type":"object"},
      "a":{"type":"array","items":{"type":"string"}},"si":{"type":["string","integer"]},"sn":{"type":["string","null"]},
      "any":{"anyOf":[{"type":"integer"},{"type":"null"}]},"e":{"enum":["x","y"]},"r":{"$ref":"#/x"},"free":{}}}}},
    {"type":"function","function":{"name":"g"}},
    {"type":"function","function":{"name":"odd","parameters":{"properties":[1]}}}, 7, {"function":{"name":3}}])"));
}

struct Parsed {
  std::string content;
  std::vector<std::pair<std::string, std::string>> calls;
  bool operator==(const Parsed&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Parsed& parsed) {
  out << '"' << parsed.content << '"';
  for (const auto& [name, arguments] : parsed.calls) out << " " << name << arguments;
  return out;
}

void add(Parsed& parsed, const ToolDelta& delta) {
  parsed.content += delta.content;
  for (const ToolCallDelta& call : delta.calls) {
    if (call.starts) parsed.calls.emplace_back(call.name, "");
    ASSERT_EQ(call.index + 1, static_cast<int32_t>(parsed.calls.size()));
    EXPECT_TRUE(call.starts || call.name.empty());
    parsed.calls.back().second += call.arguments;
  }
}

Parsed run(std::string_view text, std::vector<size_t> cuts) {
  ToolCallParser parser(schemas());
  Parsed parsed;
  cuts.push_back(text.size());
  size_t from = 0;
  for (const size_t cut : cuts) {
    add(parsed, parser.push(text.substr(from, cut - from)));
    from = cut;
  }
  add(parsed, parser.finish());
  EXPECT_EQ(parser.calls(), static_cast<int32_t>(parsed.calls.size()));
  EXPECT_EQ(parser.complete_calls(), parser.calls()) << text;
  return parsed;
}

std::string call(const std::string& parameters, const std::string& name = "f") {
  return "<tool_call>\n<function=" + name + ">\n" + parameters + "</function>\n</tool_call>";
}

std::string parameter(const std::string& key, const std::string& value) {
  return "<parameter=" + key + ">\n" + value + "\n</parameter>\n";
}

struct Case {
  std::string text;
  Parsed wanted;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"", {"", {}}},
      {"\n\nplain < text <b> </tool_call>\n", {"\n\nplain < text <b> </tool_call>\n", {}}},
      {" \n ", {" \n ", {}}},
      {call(""), {"", {{"f", "{}"}}}},
      {"\n\n" + call(parameter("s", "Rome")) + "\n", {"", {{"f", R"({"s": "Rome"})"}}}},
      {"I look.\n\n" + call(parameter("i", "3")), {"I look.\n\n", {{"f", R"({"i": 3})"}}}},
      {call(parameter("s", "a")) + "\n" + call(parameter("x", "1"), "g"),
       {"", {{"f", R"({"s": "a"})"}, {"g", R"({"x": "1"})"}}}},
      {call(parameter("s", "a")) + "\nDone.", {"\nDone.", {{"f", R"({"s": "a"})"}}}},
      // values
      {call(parameter("s", "two\nlines\n")), {"", {{"f", R"({"s": "two\nlines\n"})"}}}},
      {call("<parameter=s>x</parameter>"), {"", {{"f", R"({"s": "x"})"}}}},
      {call("<parameter=s></parameter>"), {"", {{"f", R"({"s": ""})"}}}},
      {call(parameter("s", "")), {"", {{"f", R"({"s": ""})"}}}},
      {call(parameter("s", "\"q\" \\ \t \x01 Grüße 🙂 </p <x> a<b")),
       {"", {{"f", R"({"s": "\"q\" \\ \t \u0001 Grüße 🙂 </p <x> a<b"})"}}}},
      {call(parameter("s", "null")), {"", {{"f", R"({"s": "null"})"}}}},
      {call(parameter("s", "42")), {"", {{"f", R"({"s": "42"})"}}}},
      {call(parameter("sn", "null") + parameter("any", "null") + parameter("i", "null")),
       {"", {{"f", R"({"sn": null, "any": null, "i": null})"}}}},
      {call(parameter("i", " 7 ") + parameter("n", "1e3") + parameter("b", "True")),
       {"", {{"f", R"({"i": 7, "n": 1e3, "b": true})"}}}},
      {call(parameter("i", "12345678901234567890123")), {"", {{"f", R"({"i": 12345678901234567890123})"}}}},
      {call(parameter("i", "1.5") + parameter("n", "one") + parameter("b", "yes")),
       {"", {{"f", R"({"i": "1.5", "n": "one", "b": "yes"})"}}}},
      {call(parameter("o", "{\"k\": [1, 2]}") + parameter("a", "[\"x\"]")),
       {"", {{"f", R"({"o": {"k": [1, 2]}, "a": ["x"]})"}}}},
      {call(parameter("o", "[1]") + parameter("a", "x, y")), {"", {{"f", R"({"o": "[1]", "a": "x, y"})"}}}},
      {call(parameter("si", "5") + parameter("si", "five")), {"", {{"f", R"({"si": 5, "si": "five"})"}}}},
      {call(parameter("e", "x") + parameter("free", "3") + parameter("r", "{}") + parameter("what", "3")),
       {"", {{"f", R"({"e": "x", "free": "3", "r": {}, "what": "3"})"}}}},
      // tolerated
      {"<tool_call><function= f ><parameter= s >x</parameter></function></tool_call>", {"", {{"f", R"({"s": "x"})"}}}},
      {call("<parameter=s>\nx\n<parameter=i>\n3\n"), {"", {{"f", R"({"s": "x", "i": 3})"}}}},
      {call("<parameter=s>\nwrite </function> or <parameter=i> here\n</parameter>\n"),
       {"", {{"f", R"({"s": "write </function> or <parameter=i> here"})"}}}},
      {"<tool_call>\n<function=f>\n<parameter=s>\nx\n</tool_call>\nrest", {"\nrest", {{"f", R"({"s": "x"})"}}}},
      {"<tool_call>\n<function=f>\n" + call("", "g"), {"", {{"f", "{}"}, {"g", "{}"}}}},
      {"<tool_call>\n<function=f>\n</function>\n<function=g>\n</function>\n</tool_call>",
       {"", {{"f", "{}"}, {"g", "{}"}}}},
      {"<function=f>\n" + parameter("i", "1") + "</function>", {"", {{"f", R"({"i": 1})"}}}},
      {"See:\n<function=g>\n</function>", {"See:\n", {{"g", "{}"}}}},
      {call("", "unknown"), {"", {{"unknown", "{}"}}}},
      // cut off
      {"<tool_call>\n<function=f>\n<parameter=s>\nRo", {"", {{"f", R"({"s": "Ro"})"}}}},
      {"<tool_call>\n<function=f>\n<parameter=s>\nRo\n</para", {"", {{"f", R"({"s": "Ro\n</para"})"}}}},
      {"<tool_call>\n<function=f>\n<parameter=i>\n12", {"", {{"f", R"({"i": 12})"}}}},
      {"<tool_call>\n<function=f>\n<parameter=", {"<parameter=", {{"f", "{}"}}}},
      {"<tool_call>\n<function=f>\n" + parameter("i", "1"), {"", {{"f", R"({"i": 1})"}}}},
      // no calls: nothing is lost
      {"<tool_call>", {"<tool_call>", {}}},
      {"<tool_call>\n<func", {"<tool_call>\n<func", {}}},
      {"<tool_call>\n<function=f", {"<tool_call>\n<function=f", {}}},
      {"<tool_call>\n{\"name\": \"f\"}\n</tool_call>", {"<tool_call>\n{\"name\": \"f\"}\n</tool_call>", {}}},
      {"<tool_call>\n<function=>\n</function>\n</tool_call>",
       {"<tool_call>\n<function=>\n</function>\n</tool_call>", {}}},
      {"<tool_call> oops " + call(""), {"<tool_call> oops ", {{"f", "{}"}}}},
      {"a <function=f>\n", {"a <function=f>\n", {}}},
      {"<function=nobody>\n</function>", {"<function=nobody>\n</function>", {}}},
      {call("lost words " + parameter("i", "1")), {"lost words ", {{"f", R"({"i": 1})"}}}},
      {call("<b>x</b>\n"), {"<b>x</b>\n", {{"f", "{}"}}}},
      {"<tool_", {"<tool_", {}}},
      {"x<tool_call", {"x<tool_call", {}}},
  };
  return all;
}

TEST(ToolCallParser, ReadsCalls) {
  for (const Case& one : cases()) EXPECT_EQ(run(one.text, {}), one.wanted) << one.text;
}

// Where characters begin, and the end.
std::vector<size_t> cuts_of(const std::string& text) {
  std::vector<size_t> cuts;
  for (size_t at = 0; at <= text.size(); ++at) {
    if (at == text.size() || (text[at] & 0xC0) != 0x80) cuts.push_back(at);
  }
  return cuts;
}

TEST(ToolCallParser, DoesNotDependOnCuts) {
  for (const Case& one : cases()) {
    const std::vector<size_t> all = cuts_of(one.text);
    for (const size_t a : all) {
      for (const size_t b : all) {
        if (b < a) continue;
        ASSERT_EQ(run(one.text, {a, b}), one.wanted) << one.text << "\ncut at " << a << " and " << b;
      }
    }
    EXPECT_EQ(run(one.text, all), one.wanted) << one.text;
  }
}

// Tags, parts of tags and words in any order: the same for every cut, arguments always JSON objects, and every letter
// of the words comes out somewhere.
TEST(ToolCallParser, AnyTextIsCutIndependentAndLosesNothing) {
  const std::vector<std::string> pieces = {"<tool_call>",
                                           "</tool_call>",
                                           "<function=f>",
                                           "<function=g>",
                                           "</function>",
                                           "<parameter=s>",
                                           "<parameter=i>",
                                           "</parameter>",
                                           "\n",
                                           "\n",
                                           " ",
                                           "QX",
                                           "7",
                                           "<",
                                           "</",
                                           "<function=",
                                           "<parameter=",
                                           ">",
                                           "{\"WZ\": 1}",
                                           "é",
                                           "<para"};
  std::mt19937 random(5);
  int with_calls = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string text;
    for (size_t count = 1 + random() % 14; count > 0; --count) text += pieces[random() % pieces.size()];
    const Parsed whole = run(text, {});
    std::string out = whole.content;
    for (const auto& [name, arguments] : whole.calls) {
      ASSERT_TRUE(Json::parse(arguments, nullptr, false).is_object()) << text << "\n" << arguments;
      out += name + arguments;
    }
    for (const char letter : {'Q', 'X', 'W', 'Z', '7'}) {
      ASSERT_EQ(std::count(out.begin(), out.end(), letter), std::count(text.begin(), text.end(), letter)) << text;
    }
    with_calls += !whole.calls.empty();
    std::vector<size_t> cuts = cuts_of(text);
    for (const size_t cut : cuts) ASSERT_EQ(run(text, {cut}), whole) << text << "\ncut at " << cut;
    std::erase_if(cuts, [&](size_t) { return random() % 3 != 0; });
    ASSERT_EQ(run(text, cuts), whole) << text;
  }
  EXPECT_GT(with_calls, 400);
}

TEST(ToolCallParser, EmitsWhatIsCertain) {
  ToolCallParser parser(schemas());
  EXPECT_EQ(parser.push("Hi <tool_").content, "Hi ");
  ToolDelta delta = parser.push("call>\n<function=f>\n");
  ASSERT_EQ(delta.calls.size(), 1u);
  EXPECT_TRUE(delta.calls[0].starts);
  EXPECT_EQ(delta.calls[0].name, "f");
  EXPECT_EQ(delta.calls[0].arguments, "{");
  EXPECT_EQ(parser.push("<parameter=s>\nab").calls[0].arguments, "\"s\": \"ab");
  EXPECT_EQ(parser.push("c\n").calls[0].arguments, "c");
  EXPECT_EQ(parser.push("d").calls[0].arguments, "\\nd");
  EXPECT_EQ(parser.complete_calls(), 0);
  EXPECT_EQ(parser.push("\n</parameter>\n</function>").calls[0].arguments, "\"}");
  EXPECT_EQ(parser.complete_calls(), 1);
}

}  // namespace
}  // namespace assay::text

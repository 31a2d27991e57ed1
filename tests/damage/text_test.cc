// Damaged tokenizer.json, tokenizer_config.json and chat templates.
#include "damage/damage.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace assay::damage {
namespace {

constexpr char kTokenizer[] = "tokenizer.json";
constexpr char kTokenizerConfig[] = "tokenizer_config.json";
constexpr char kTemplate[] = "chat_template.jinja";

Result<void> load_tokenizer(const std::string& directory) {
  auto tokenizer = text::Tokenizer::load(directory);
  if (!tokenizer.ok()) return std::move(tokenizer).error();
  return {};
}

Result<void> load_template(const std::string& directory) {
  auto made = text::ChatTemplate::load(directory);
  if (!made.ok()) return std::move(made).error();
  return {};
}

class TokenizerFiles : public ::testing::Test {
 protected:
  TokenizerFiles() : damaged_("models/pocket", load_tokenizer), tokenizer_(damaged_.json(kTokenizer)) {}

  // The tokenizer with the value at `pointer` replaced; without a value: removed.
  void refuse(const std::string& pointer, const std::optional<ordered_json>& value,
              const std::vector<std::string>& wanted) {
    ordered_json changed = tokenizer_;
    const ordered_json::json_pointer at(pointer);
    if (value) {
      changed[at] = *value;
    } else {
      changed[at.parent_pointer()].erase(at.back());
    }
    std::vector<std::string> all = wanted;
    all.push_back(kTokenizer);
    damaged_.refuse(pointer + " " + (value ? value->dump().substr(0, 60) : "missing"), kTokenizer, changed.dump(), all);
  }

  Damaged damaged_;
  const ordered_json tokenizer_;
};

TEST_F(TokenizerFiles, Truncated) {
  const std::string& whole = damaged_.bytes(kTokenizer);
  for (size_t length = 0; length < whole.size(); length += whole.size() / 40 + 1) {
    damaged_.refuse("cut", kTokenizer, whole.substr(0, length), {kTokenizer});
  }
  damaged_.refuse("no file", kTokenizer, std::nullopt, {kTokenizer});
  for (const std::string& text : {std::string("[]"), std::string("3"), std::string(100, '\0'), deep_json(1'000'000),
                                  std::string("{}"), std::string(1'000'000, '['), std::string("{\"a\":\"\xff\"}")}) {
    damaged_.refuse("text " + text.substr(0, 20), kTokenizer, text, {kTokenizer});
  }
  for (const char* section : {"pre_tokenizer", "normalizer", "model", "added_tokens"}) {
    const std::string deep = "{\"" + std::string(section) + "\":" + deep_json(100'000) + "}";
    damaged_.refuse(std::string("deep ") + section, kTokenizer, deep, {kTokenizer, "deep"});
  }
  const std::string& config = damaged_.bytes(kTokenizerConfig);
  for (size_t length = 0; length + 2 < config.size(); length += config.size() / 40 + 1) {
    damaged_.refuse("cut config", kTokenizerConfig, config.substr(0, length), {kTokenizerConfig});
  }
}

TEST_F(TokenizerFiles, WrongSections) {
  const std::vector<ordered_json> odd = {nullptr, 1, "x", ordered_json::array(), ordered_json::object(), true};
  for (const ordered_json& value : odd) {
    refuse("/model", value, {"model"});
    refuse("/model/type", value, {"model"});
    refuse("/pre_tokenizer", value, {"pre_tokenizer"});
    refuse("/pre_tokenizer/pretokenizers", value, {"pre_tokenizer"});
    refuse("/pre_tokenizer/pretokenizers/0/pattern/Regex", value.is_string() ? ordered_json("(") : value,
           {value.is_string() ? "(" : "pre_tokenizer"});
    refuse("/pre_tokenizer/pretokenizers/0/behavior", value, {"pre_tokenizer"});
    refuse("/model/vocab", value, {"vocab"});
    if (!value.is_array()) refuse("/model/merges", value, {"merges"});
    if (!value.is_null()) refuse("/normalizer", value, {"normalizer"});
    if (!value.is_null() && !value.is_array()) refuse("/added_tokens", value, {"added_tokens"});
    refuse("/model/vocab/a", value, {"vocab"});
    refuse("/model/merges/7", value, {"merges"});
    refuse("/added_tokens/1/id", value, {"added_tokens"});
    refuse("/added_tokens/1/content", value.is_string() ? ordered_json("") : value, {"added_tokens"});
    refuse("/added_tokens/1", value, {"added_tokens"});
  }
  for (const char* pointer : {"/model", "/pre_tokenizer", "/model/vocab", "/model/merges", "/model/type"}) {
    refuse(pointer, std::nullopt, {});
  }
  refuse("/normalizer/type", "NFKC", {"normalizer", "NFKC"});
  refuse("/model/type", "WordPiece", {"WordPiece"});
  refuse("/model/byte_fallback", true, {"byte_fallback"});
  refuse("/model/end_of_word_suffix", "</w>", {"end_of_word_suffix"});
  refuse("/pre_tokenizer/pretokenizers/0/invert", true, {"pre_tokenizer"});
  refuse("/pre_tokenizer/pretokenizers/1/add_prefix_space", true, {"add_prefix_space"});
  refuse("/added_tokens/1/lstrip", true, {"added_tokens", "lstrip"});
}

TEST_F(TokenizerFiles, ContradictoryVocabulary) {
  const auto& vocabulary = tokenizer_["model"]["vocab"];
  int at = 0;
  for (const auto& [token, id] : vocabulary.items()) {
    if (++at > 200) break;
    const ordered_json::json_pointer pointer = ordered_json::json_pointer("/model/vocab") / token;
    for (const ordered_json& value : {ordered_json(-1), ordered_json(1 << 24), ordered_json(1.5), ordered_json("1")}) {
      refuse(pointer.to_string(), value, {"vocab"});
    }
    refuse(pointer.to_string(), std::nullopt, {});  // a byte, or what a merge makes
  }
  for (const char* merge : {"a", "", "a nothinglikethis", "nothinglikethis a", "\u0001 a"}) {
    refuse("/model/merges/3", merge, {});
  }
  refuse("/model/vocab/\u20ac", 17, {"\u20ac"});
  for (const int id : {0, 300, 3054}) {
    refuse("/added_tokens/-", ordered_json{{"id", id}, {"content", "<|another|>"}},
           {"an added token has the id of another token", std::to_string(id) + " = <|another|>"});
  }
}

TEST_F(TokenizerFiles, ContradictoryConfig) {
  const auto refuse_config = [&](const std::string& field, const ordered_json& value, const std::string& wanted) {
    ordered_json config = damaged_.json(kTokenizerConfig);
    config[field] = value;
    damaged_.refuse(field, kTokenizerConfig, config.dump(), {kTokenizerConfig, wanted});
  };
  refuse_config("eos_token", "no such token", "eos_token");
  refuse_config("added_tokens_decoder", 3, "added_tokens_decoder");
  refuse_config("added_tokens_decoder", {{"x", {{"content", "y"}}}}, "added_tokens_decoder");
  refuse_config("added_tokens_decoder", {{"3049", {{"content", "y"}}}}, "contradicts");
  refuse_config("added_tokens_decoder", {{"3050", {{"content", "<|im_end|>"}}}}, "contradicts");
  refuse_config("added_tokens_decoder", {{"-1", {{"content", "y"}}}}, "added_tokens_decoder");
}

class Templates : public ::testing::Test {
 protected:
  Templates() : damaged_("models/pocket", load_template) {}
  void refuse(const std::string& source, const std::vector<std::string>& wanted) {
    damaged_.refuse(source.substr(0, 60), kTemplate, source, wanted);
  }
  Damaged damaged_;
};

TEST_F(Templates, SyntaxErrors) {
  for (const char* source : {"{{",
                             "{%",
                             "{{ }}",
                             "{% if %}{% endif %}",
                             "{% if a %}",
                             "{% for x in %}{% endfor %}",
                             "{% for in x %}",
                             "{% endfor %}",
                             "{% else %}",
                             "{% set = 1 %}",
                             "{% nonsense %}",
                             "{{ a + }}",
                             "{{ a b }}",
                             "{{ 'open }}",
                             "{{ (a }}",
                             "{{ [1, }}",
                             "{{ {1: } }}",
                             "{{ a | }}",

                             "{% macro %}{% endmacro %}",
                             "{% macro f( %}{% endmacro %}",
                             "{% endif %}",
                             "{{ a.}}"}) {
    refuse(source, {"chat_template.jinja: chat template, line 1: "});
  }
  refuse("line one\nline two\n{% if %}", {"chat_template.jinja: chat template, line 3: "});
  for (const char* open : {"{{ (", "{{ [", "{{ not ", "{{ -", "{{ {1: ", "{% if a %}", "{% for x in a %}"}) {
    std::string nested;
    for (int i = 0; i < 20'000; ++i)
      nested += i == 0 ? std::string(open) : std::string(open).substr(open[1] == '{' ? 3 : 0);
    refuse(nested, {"chat_template.jinja: chat template, line 1: "});
  }
}

// Cut anywhere, the shipped template parses or is refused with its line: never anything else.
TEST_F(Templates, ShippedTemplateCutAnywhere) {
  const std::string whole = damaged_.bytes(kTemplate);
  int refused = 0;
  for (size_t length = 0; length < whole.size(); ++length) {
    const auto made = text::ChatTemplate::parse(whole.substr(0, length));
    if (made.ok()) continue;
    ++refused;
    ASSERT_NE(made.error().message().find("chat template, line "), std::string::npos) << made.error().message();
  }
  EXPECT_GE(refused, static_cast<int>(whole.size()) / 2);
}

}  // namespace
}  // namespace assay::damage

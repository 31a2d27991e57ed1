#include "text/tokenizer.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include <unistd.h>
#include <utf8proc.h>

#include "text/detokenizer.h"
#include "text/goldens_test_util.h"
#include "text/nfc.h"
#include "text/pre_tokenizer.h"
#include "text/utf8.h"
#include "text/word_cache.h"

namespace assay::text {
namespace {

const Tokenizer& pocket() {
  static const std::unique_ptr<Tokenizer> tokenizer = [] {
    auto loaded = Tokenizer::load(kPocket);
    return std::move(loaded).value();
  }();
  return *tokenizer;
}

std::string decode(const std::vector<int32_t>& ids, bool skip_special) {
  Detokenizer detokenizer(pocket(), skip_special);
  std::string text;
  for (const int32_t id : ids) {
    const std::string part = detokenizer.push(id);
    EXPECT_TRUE(is_valid_utf8(part));
    text += part;
  }
  return text + detokenizer.finish();
}

// A golden's text; ill-formed ones are spelt as bytes.
std::string text_of(const nlohmann::ordered_json& golden) {
  if (golden.contains("text")) return golden["text"];
  const std::string digits = golden["bytes"];
  std::string bytes;
  for (size_t i = 0; i < digits.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

TEST(Tokenizer, EqualsTheGoldenEncodings) {
  const auto goldens = test_json("tests/goldens/text/tokenizer.json");
  ASSERT_GE(goldens["encode"].size(), 2000u);
  for (const auto& golden : goldens["encode"]) {
    EXPECT_EQ(pocket().encode(text_of(golden)), golden["ids"].get<std::vector<int32_t>>()) << golden;
  }
}

TEST(Detokenizer, EqualsTheGoldenDecodings) {
  const auto goldens = test_json("tests/goldens/text/tokenizer.json");
  for (const char* part : {"encode", "decode"}) {
    ASSERT_GE(goldens[part].size(), 100u);
    for (const auto& golden : goldens[part]) {
      const auto ids = golden["ids"].get<std::vector<int32_t>>();
      const std::string decoded = golden.contains("decoded") ? golden["decoded"] : golden["text"];
      EXPECT_EQ(decode(ids, false), decoded) << golden;
      EXPECT_EQ(decode(ids, true), golden.value("shown", decoded)) << golden;
    }
  }
}

TEST(Tokenizer, EncodesTheReferencePrompts) {
  const auto golden = test_json("models/pocket/golden/golden.json");
  ASSERT_EQ(golden["prompts"].size(), 22u);
  for (const auto& prompt : golden["prompts"]) {
    EXPECT_EQ(pocket().encode(prompt["prompt"].get<std::string>()), prompt["input_ids"].get<std::vector<int32_t>>())
        << prompt["id"];
  }
}

// Classes of the pattern and NFC, over every code point. Must be the same text as probe() of make_text_goldens.py.
TEST(PreTokenizer, SplitsEveryCodePointAsTheGoldens) {
  const auto goldens = test_json("tests/goldens/text/splits.json");
  const auto splitter = PreTokenizer::make(goldens["pattern"]);
  ASSERT_TRUE(splitter.ok()) << splitter.error().message();
  const uint32_t block = goldens["block"];
  uint32_t first = 0;
  std::vector<std::string_view> pieces;
  for (const auto& expected : goldens["hashes"]) {
    uint64_t state = 0xCBF29CE484222325ull;
    const auto mix = [&](uint8_t byte) { state = (state ^ byte) * 0x100000001B3ull; };
    for (uint32_t code = first; code < first + block; ++code) {
      if (code >= 0xD800 && code < 0xE000) continue;
      std::string c;
      append_utf8(c, code);
      const std::string text = normalize_nfc("a" + c + "b1" + c + c + "\n " + c + "\n" + c + " " + c + "!" + c);
      pieces.clear();
      (*splitter)->split(text, pieces);
      for (const std::string_view piece : pieces) {
        for (const char byte : piece) mix(static_cast<uint8_t>(byte));
        mix(0xFF);
      }
    }
    EXPECT_EQ(fmt::format("{:016x}", state), expected.get<std::string>()) << fmt::format("from U+{:04X}", first);
    first += block;
  }
  EXPECT_EQ(first, 0x110000u);
}

// Cut into stretches, text gets the form that the library gives it as a whole.
TEST(Nfc, EqualsTheWholeTextsForm) {
  const std::string characters[] = {"a",      "q",      " ",      "\u00e9", "\u0130", "\u0323", "\u0301",     "\u0307",
                                    "\u1ebf", "\u0438", "\u0439", "\u0306", "\uac00", "\u11a8", "\u1100",     "\u1161",
                                    "\u09c7", "\u09be", "\u212b", "\u6f22", "\u0958", "\u2192", "\U0001d15e", "\u0344"};
  std::mt19937 random(5);
  int changed = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string text;
    for (size_t count = random() % 12; count > 0; --count) {
      if (random() % 4 != 0) {
        text += characters[random() % std::size(characters)];
      } else {
        const auto any = static_cast<char32_t>(1 + random() % 0xFFFF);
        if (any < 0xD800 || any >= 0xE000) append_utf8(text, any);
      }
    }
    utf8proc_uint8_t* whole = utf8proc_NFC(reinterpret_cast<const utf8proc_uint8_t*>(text.c_str()));
    const std::string expected = reinterpret_cast<const char*>(whole);
    std::free(whole);
    ASSERT_EQ(normalize_nfc(text), expected) << text;
    changed += expected != text;
  }
  EXPECT_GT(changed, 10'000);
}

TEST(Tokenizer, KnowsItsVocabulary) {
  EXPECT_EQ(pocket().vocabulary_size(), 3056);
  EXPECT_EQ(pocket().eos_token(), 3049);
  EXPECT_EQ(pocket().added_token("<think>"), 3054);
  EXPECT_EQ(pocket().added_token("the"), std::nullopt);
  EXPECT_EQ(pocket().token_bytes(3049), "<|im_end|>");
  EXPECT_EQ(pocket().token_bytes(3056), "");
  EXPECT_EQ(pocket().token_bytes(-1), "");
  EXPECT_TRUE(pocket().is_special(3047));
  EXPECT_FALSE(pocket().is_special(3054));
  EXPECT_FALSE(pocket().is_special(3056));
  EXPECT_FALSE(pocket().is_special(-1));
}

TEST(Tokenizer, ReadsIllFormedBytesAsReplacementCharacters) {
  EXPECT_EQ(pocket().encode("a\xFF"), pocket().encode("a\uFFFD"));
  EXPECT_EQ(pocket().encode("\xF0\x9F\x98z"), pocket().encode("\uFFFDz"));
  EXPECT_EQ(pocket().encode("\xED\xA0\x80"), pocket().encode("\uFFFD\uFFFD\uFFFD"));
  EXPECT_EQ(pocket().encode("\xC0\x80"), pocket().encode("\uFFFD\uFFFD"));
}

TEST(Detokenizer, GivesBackEveryText) {
  const std::string text = "naïve 你好 👨‍👩‍👧 <think>\nשָׁלוֹם</think> \x01 end";
  EXPECT_EQ(decode(pocket().encode(text), false), normalize_nfc(text));
}

TEST(Detokenizer, HoldsBackHalfACharacter) {
  Detokenizer detokenizer(pocket(), false);
  const auto byte_token = [](uint8_t wanted) {
    for (int32_t id = 0; id < 256; ++id) {
      if (pocket().token_bytes(id) == std::string_view(reinterpret_cast<const char*>(&wanted), 1)) return id;
    }
    return -1;
  };
  EXPECT_EQ(detokenizer.push(byte_token(0xF0)), "");
  EXPECT_EQ(detokenizer.push(byte_token(0x9F)), "");
  EXPECT_EQ(detokenizer.push(byte_token(0x98)), "");
  EXPECT_EQ(detokenizer.push(byte_token(0x80)), "😀");
  EXPECT_EQ(detokenizer.push(byte_token(0xE2)), "");
  EXPECT_EQ(detokenizer.push(byte_token('a')), "\uFFFDa");
  EXPECT_EQ(detokenizer.push(byte_token(0xE2)), "");
  EXPECT_EQ(detokenizer.finish(), "\uFFFD");
  EXPECT_EQ(detokenizer.finish(), "");
}

// A word of a megabyte must not take quadratic time, which would be hours, or overflow the matcher's stack.
TEST(Tokenizer, TakesLongRunsInItsStride) {
  std::string marks;
  for (int i = 0; i < 250000; ++i) marks += i % 2 ? "\u0301" : "\u0323";
  for (const std::string& text : {std::string(1 << 20, ' '), std::string(1 << 20, 'a'), std::string(1 << 20, '='),
                                  std::string(1 << 20, '\n'), std::string(1 << 20, '<'), marks}) {
    const auto ids = pocket().encode(text);
    ASSERT_FALSE(ids.empty());
    EXPECT_EQ(decode(ids, false), normalize_nfc(text));
  }
}

TEST(Tokenizer, GivesThreadsTheSameIds) {
  const std::string text = test_file("models/pocket/golden/golden.json").substr(0, 50000);
  const auto expected = pocket().encode(text);
  std::vector<std::thread> threads;
  std::vector<std::vector<int32_t>> found(4);
  for (auto& ids : found) threads.emplace_back([&] { ids = pocket().encode(text); });
  for (auto& thread : threads) thread.join();
  for (const auto& ids : found) EXPECT_EQ(ids, expected);
}

TEST(WordCache, KeepsTheLatestWordOfAPlaceAndNothingTooLarge) {
  WordCache cache;
  const auto ids_of = [](size_t number) { return std::vector<int32_t>(1 + number % 20, static_cast<int32_t>(number)); };
  const auto word_of = [](size_t number) { return std::to_string(number) + std::string(number % 40, 'x'); };
  constexpr size_t kMany = 4 * WordCache::kWords;
  for (size_t i = 0; i < kMany; ++i) {
    cache.put(word_of(i), ids_of(i));
    EXPECT_TRUE(std::ranges::equal(cache.find(word_of(i)), ids_of(i)));
  }
  size_t kept = 0;
  for (size_t i = 0; i < kMany; ++i) {
    const auto found = cache.find(word_of(i));
    kept += found.empty() ? 0 : 1;
    EXPECT_TRUE(found.empty() || std::ranges::equal(found, ids_of(i))) << i;
  }
  EXPECT_GT(kept, WordCache::kWords / 2);
  EXPECT_LE(kept, WordCache::kWords);
  cache.put(std::string(1000, 'a'), ids_of(1));
  EXPECT_TRUE(cache.find(std::string(1000, 'a')).empty());
  cache.put("many", std::vector<int32_t>(1000, 1));
  EXPECT_TRUE(cache.find("many").empty());
  EXPECT_TRUE(cache.find("").empty());
  cache.clear();
  EXPECT_TRUE(cache.find(word_of(kMany - 1)).empty());
}

TEST(PreTokenizer, PutsPatternsInItsOwnTerms) {
  EXPECT_EQ(to_pcre2_pattern("a\\\\s[\\d]"), "a\\\\s[\\d]");
  EXPECT_NE(to_pcre2_pattern("[^\\s]").value().find("[^\\t-\\r "), std::string::npos);
  EXPECT_NE(to_pcre2_pattern("\\p{L}+").value().find("[a-zA-Z\\p{L}\\x{1c89}"), std::string::npos);
  EXPECT_EQ(to_pcre2_pattern("[\\S]"), std::nullopt);
  EXPECT_EQ(to_pcre2_pattern("[\\P{L}]"), std::nullopt);
  EXPECT_FALSE(PreTokenizer::make("(unclosed").ok());
}

// A model directory of its own with tokenizer.json changed by the test.
class TokenizerFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = std::filesystem::temp_directory_path() / fmt::format("assay_tokenizer_{}", ::getpid());
    std::filesystem::create_directories(directory_);
    tokenizer_ = test_json("models/pocket/tokenizer.json");
    config_ = test_json("models/pocket/tokenizer_config.json");
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  Result<std::unique_ptr<Tokenizer>> load() {
    std::ofstream(directory_ / "tokenizer.json") << tokenizer_.dump();
    std::ofstream(directory_ / "tokenizer_config.json") << config_.dump();
    return Tokenizer::load(directory_);
  }
  std::filesystem::path directory_;
  nlohmann::ordered_json tokenizer_, config_;
};

TEST_F(TokenizerFiles, AContradictionIsAnError) {
  config_["added_tokens_decoder"]["3054"]["content"] = "<thonk>";
  const auto loaded = load();
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.error().kind, ErrorKind::kCheckpoint);
  EXPECT_EQ(loaded.error().got, "3054 = <thonk>");
}

TEST_F(TokenizerFiles, AnIdOfTwoTokensIsAnError) {
  config_["added_tokens_decoder"]["300"] = {{"content", "<|extra|>"}};
  auto loaded = load();
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.error().kind, ErrorKind::kCheckpoint);
  EXPECT_EQ(loaded.error().what, "an added token has the id of another token");
  EXPECT_TRUE(loaded.error().got.starts_with("300 = <|extra|>, and 300 = ")) << loaded.error().got;

  SetUp();
  tokenizer_["added_tokens"].push_back({{"id", 3054}, {"content", "<|extra|>"}});
  loaded = load();
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.error().got, "3054 = <|extra|>, and 3054 = <think>");

  // Older files list their added tokens in the vocabulary too: fine, under the same id.
  SetUp();
  tokenizer_["model"]["vocab"]["<think>"] = 3054;
  tokenizer_["model"]["vocab"]["<\u4f60>"] = 3060;
  tokenizer_["added_tokens"].push_back({{"id", 3060}, {"content", "<\u4f60>"}});
  EXPECT_TRUE(load().ok());
  tokenizer_["model"]["vocab"]["<\u4f60>"] = 3061;
  loaded = load();
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.error().what, "vocab and added_tokens give a token two ids");
}

TEST_F(TokenizerFiles, TokensOnlyInTheConfigAreAdded) {
  config_["added_tokens_decoder"]["3060"] = {{"content", "<|extra|>"}, {"special", true}};
  const auto loaded = load();
  ASSERT_TRUE(loaded.ok()) << loaded.error().message();
  EXPECT_EQ((*loaded)->encode("<|extra|>"), std::vector<int32_t>{3060});
  EXPECT_EQ((*loaded)->vocabulary_size(), 3061);
}

TEST_F(TokenizerFiles, NormalizedTokensAreFoundInNormalizedText) {
  config_["added_tokens_decoder"]["3060"] = {{"content", "<é>"}, {"normalized", true}};
  const auto loaded = load();
  ASSERT_TRUE(loaded.ok()) << loaded.error().message();
  EXPECT_EQ((*loaded)->encode("<e\u0301>"), std::vector<int32_t>{3060});
}

TEST_F(TokenizerFiles, MergesMayBeSpeltAsOneString) {
  for (auto& merge : tokenizer_["model"]["merges"]) {
    if (merge.is_array()) merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  }
  const auto loaded = load();
  ASSERT_TRUE(loaded.ok()) << loaded.error().message();
  EXPECT_EQ((*loaded)->encode("What is the capital of France?"), pocket().encode("What is the capital of France?"));
}

TEST_F(TokenizerFiles, OtherKindsAreRefused) {
  tokenizer_["normalizer"]["type"] = "NFKC";
  EXPECT_EQ(load().error().kind, ErrorKind::kCheckpoint);
  tokenizer_["normalizer"] = nullptr;
  EXPECT_TRUE(load().ok());
  tokenizer_["model"]["type"] = "Unigram";
  EXPECT_EQ(load().error().kind, ErrorKind::kCheckpoint);
}

TEST_F(TokenizerFiles, DamageIsAnError) {
  tokenizer_["model"]["merges"].push_back({"zzzz", "qqqq"});
  EXPECT_EQ(load().error().kind, ErrorKind::kCheckpoint);
  tokenizer_["model"]["merges"] = 3;
  EXPECT_EQ(load().error().kind, ErrorKind::kCheckpoint);
  tokenizer_ = "text";
  EXPECT_EQ(load().error().kind, ErrorKind::kCheckpoint);
  EXPECT_EQ(Tokenizer::load("no/such/directory").error().kind, ErrorKind::kCheckpoint);
}

}  // namespace
}  // namespace assay::text

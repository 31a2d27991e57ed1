// Dummy weights: they load like others, activations keep their size through any number of layers, and the router is as
// even or skewed as asked.
#include <gtest/gtest.h>

#include <cmath>

#include "checkpoint/testing.h"
#include "end_to_end/sequence_runner.h"

namespace assay {
namespace {

using checkpoint::DummyFormat;
using checkpoint::DummyRouter;
using engine::Phase;
using testing::RecordingTaps;
using testing::SequenceRunner;

constexpr int kTokens = 160;
constexpr int kVocab = 512;
constexpr int kExperts = 24;

const std::vector<const char*> kAttentionSites = {"attention_block.norm", "attention_block.qkv",
                                                  "attention_block.attention"};
const std::vector<const char*> kDeltaSites = {"gdn_block.norm", "gdn_block.in_proj", "gdn_block.delta",
                                              "gdn_block.gated"};

struct Shape {
  int layers = 8;
  bool mixture = true;
  bool tied = false;
};

std::string config_text(const Shape& shape) {
  const std::string ffn = shape.mixture
                              ? fmt::format(R"("num_experts":{},"num_experts_per_tok":4,"moe_intermediate_size":48,
"shared_expert_intermediate_size":48)",
                                            kExperts)
                              : R"("intermediate_size":192)";
  return fmt::format(R"({{"architectures":["{}"],"model_type":"{}","hidden_size":64,"num_hidden_layers":{},
"vocab_size":{},"max_position_embeddings":512,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":32,
"linear_num_key_heads":2,"linear_num_value_heads":4,"linear_key_head_dim":16,"linear_value_head_dim":16,
"rope_parameters":{{"rope_theta":10000000}},"tie_word_embeddings":{},{}}})",
                     shape.mixture ? "Qwen3_5MoeForCausalLM" : "Qwen3_5ForCausalLM",
                     shape.mixture ? "qwen3_5_moe_text" : "qwen3_5_text", shape.layers, kVocab, shape.tied, ffn);
}

class Dummy : public ::testing::Test {
 protected:
  std::unique_ptr<engine::LocalEngine> load(const Shape& shape, const checkpoint::DummyOptions& dummy,
                                            int32_t layers = 0) {
    checkpoint::testing::write_file(directory_.file("shape.json"), config_text(shape));
    engine::LoadOptions options;
    options.model_directory = directory_.file("shape.json");
    options.load_format = engine::LoadFormat::kDummy;
    options.dummy = dummy;
    options.dummy_layers = layers;
    options.max_sequences = 1;
    return engine::load(options).value();
  }

  // Scattered tokens as prefill, the last one as decode.
  const RecordingTaps& run(engine::LocalEngine& engine) {
    std::vector<int32_t> ids;
    for (int i = 0; i < kTokens; ++i) ids.push_back((i * 211 + 17) % kVocab);
    taps_.clear();
    engine.set_taps(&taps_);
    SequenceRunner runner(engine);
    runner.run(std::span(ids).first(kTokens - 1), Phase::kPrefill, 64, kTokens - 2);
    runner.run(std::span(ids).last(1), Phase::kDecode, 1, 0);
    engine.set_taps(nullptr);
    return taps_;
  }

  double rms(const std::string& site, int layer) {
    const auto& values = taps_.site(site, layer).values;
    EXPECT_FALSE(values.empty()) << site << " of layer " << layer;
    double sum = 0;
    for (float value : values) sum += static_cast<double>(value) * value;
    return std::sqrt(sum / static_cast<double>(values.size()));
  }

  void expect_size(const std::string& site, int layer) {
    const double value = rms(site, layer);
    EXPECT_GE(value, 0x1p-6) << site << " of layer " << layer;
    EXPECT_LE(value, 0x1p6) << site << " of layer " << layer;
  }

  void expect_sizes(const Shape& shape, const checkpoint::DummyOptions& dummy) {
    const auto engine = load(shape, dummy);
    run(*engine);
    expect_size("embed", 0);
    for (int layer = 0; layer < shape.layers; ++layer) {
      expect_size("layer", layer);
      expect_size("ffn_block.norm", layer);
      if (shape.mixture) expect_size("experts.hidden", layer);
      for (const char* site : layer % 4 == 3 ? kAttentionSites : kDeltaSites) {
        expect_size(site, layer);
      }
    }
    expect_size("logits", shape.layers);
  }

  checkpoint::testing::TempDirectory directory_;
  RecordingTaps taps_;
};

TEST_F(Dummy, ActivationsKeepTheirSize) {
  for (const DummyFormat format : {DummyFormat::kBf16, DummyFormat::kModelOpt, DummyFormat::kNvfp4}) {
    expect_sizes({.layers = 8}, {.format = format});
    expect_sizes({.layers = 8, .mixture = false}, {.format = format});
    expect_sizes({.layers = 8, .mixture = false, .tied = true}, {.format = format});
  }
}

TEST_F(Dummy, ActivationsKeepTheirSizeThroughSixtyLayers) {
  expect_sizes({.layers = 60}, {});
  expect_sizes({.layers = 60, .tied = true}, {.format = DummyFormat::kNvfp4, .router = DummyRouter::kSkewed});
}

TEST_F(Dummy, FormatsTakeTheBytesTheyShould) {
  const auto bytes = [&](DummyFormat format) { return load({}, {.format = format})->summary().checkpoint_bytes; };
  const int64_t parameters = load({}, {})->summary().parameters;
  const int64_t experts = int64_t{8} * kExperts * 3;
  EXPECT_EQ(bytes(DummyFormat::kBf16), 2 * parameters);
  EXPECT_EQ(bytes(DummyFormat::kModelOpt), 2 * parameters - experts * 64 * 48 * (32 - 9) / 16);
  EXPECT_LT(bytes(DummyFormat::kNvfp4), bytes(DummyFormat::kModelOpt));
}

TEST_F(Dummy, SeedDecidesEveryBit) {
  const auto logits = [&](uint64_t seed) {
    const auto engine = load({}, {.seed = seed});
    run(*engine);
    return taps_.site("logits", 8).values;
  };
  EXPECT_EQ(logits(1), logits(1));
  EXPECT_NE(logits(1), logits(2));
}

TEST_F(Dummy, KeepsTheFirstLayers) {
  const auto engine = load({}, {}, 5);
  EXPECT_EQ(engine->config().num_layers, 5);
  run(*engine);
  EXPECT_EQ(taps_.site("layer", 4).rows(), static_cast<size_t>(kTokens));
  EXPECT_EQ(taps_.site("layer", 5).rows(), 0u);
}

TEST_F(Dummy, RouterIsEvenOrSkewed) {
  // Share of all choices that go to the first quarter of the experts.
  const auto share = [&](DummyRouter router) {
    const auto engine = load({}, {.router = router});
    run(*engine);
    double first = 0, all = 0;
    for (int layer = 0; layer < 8; ++layer) {
      for (float id : taps_.site("router.ids", layer).values) {
        first += id < kExperts / 4;
        ++all;
      }
    }
    return first / all;
  };
  EXPECT_NEAR(share(DummyRouter::kUniform), 0.25, 0.1);
  EXPECT_GT(share(DummyRouter::kSkewed), 0.5);
}

TEST_F(Dummy, RefusesInputsThatNvfp4CannotHold) {
  std::string text = config_text({});
  text.replace(text.find("\"moe_intermediate_size\":48"), 26, "\"moe_intermediate_size\":40");
  checkpoint::testing::write_file(directory_.file("shape.json"), text);
  engine::LoadOptions options;
  options.model_directory = directory_.file("shape.json");
  options.load_format = engine::LoadFormat::kDummy;
  const auto engine = engine::load(options);
  ASSERT_FALSE(engine.ok());
  EXPECT_NE(engine.error().message().find("down_proj: inputs are not a multiple of the block: got 40"),
            std::string::npos)
      << engine.error().message();
}

}  // namespace
}  // namespace assay

// pocket's goldens of Hugging Face (models/pocket/golden), and what an engine makes of their prompts.
#pragma once

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "end_to_end/sequence_runner.h"

namespace assay::testing {

inline constexpr char kPocket[] = "models/pocket";

// The published noise of computing in bf16 (models/pocket/README.md): mean KL to fp32.
inline constexpr double kNoiseOfAnswers = 9e-7, kNoiseOfStories = 2.2e-5;

struct Golden {
  nlohmann::json prompts;
  nlohmann::json router_top4;  // of prompt 0: [layer][token][4], sorted
  checkpoint::SafetensorsFile tensors;

  std::span<const float> tensor(const std::string& name) const {
    const checkpoint::TensorInfo* info = nullptr;
    for (const auto& candidate : tensors.tensors()) {
      if (candidate.name == name) info = &candidate;
    }
    CHECK(info != nullptr && info->dtype == DType::kF32, "golden tensor {}", name);
    return {reinterpret_cast<const float*>(info->bytes.data()), info->bytes.size() / sizeof(float)};
  }
};

inline const Golden& golden() {
  static const Golden instance = [] {
    std::ifstream file(std::string(kPocket) + "/golden/golden.json");
    const auto json = nlohmann::json::parse(file);
    return Golden{json["prompts"], json["router_top4_prompt0"],
                  checkpoint::SafetensorsFile::open(std::string(kPocket) + "/golden/golden.safetensors").value()};
  }();
  return instance;
}

inline std::vector<double> log_softmax(std::span<const float> logits) {
  double largest = -INFINITY;
  for (float logit : logits) largest = std::max(largest, static_cast<double>(logit));
  double sum = 0;
  for (float logit : logits) sum += std::exp(logit - largest);
  std::vector<double> result;
  for (float logit : logits) result.push_back(logit - largest - std::log(sum));
  return result;
}

inline double kl(std::span<const float> wanted_logits, std::span<const float> got_logits) {
  const auto wanted = log_softmax(wanted_logits);
  const auto got = log_softmax(got_logits);
  double sum = 0;
  for (size_t i = 0; i < wanted.size(); ++i) sum += std::exp(wanted[i]) * (wanted[i] - got[i]);
  return sum;
}

// The logits of one prompt: of its last four tokens, then of every greedy token's predecessor, the golden tokens
// forced.
struct PromptLogits {
  RecordingTaps taps;
  size_t rows = 0;
  std::span<const float> last(size_t index) { return site().row(index); }
  std::span<const float> greedy(size_t index) { return site().row(3 + index); }
  int head_layer = 0;

 private:
  const RecordingTaps::Site& site() { return taps.site("logits", head_layer); }
};

inline void run_prompt(engine::LocalEngine& engine, const nlohmann::json& prompt, PromptLogits& out) {
  const std::vector<int32_t> ids = prompt["input_ids"];
  const std::vector<int32_t> greedy = prompt["greedy_ids"];
  out.head_layer = static_cast<int>(engine.config().num_layers);
  engine.set_taps(&out.taps);
  SequenceRunner runner(engine);
  runner.run(ids, engine::Phase::kPrefill, engine::kPrefillCut * 8, ids.size() - 4);
  runner.run(std::span(greedy).first(greedy.size() - 1), engine::Phase::kVerify, 512, 0);
  engine.set_taps(nullptr);
}

}  // namespace assay::testing

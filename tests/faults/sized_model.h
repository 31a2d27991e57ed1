// The ops of a model of any sizes, with made-up weights: what the proof is given to measure the proof itself.
#pragma once

#include <cstdint>
#include <memory>

#include "ops/all_ops.h"
#include "ops/cases.h"
#include "ops/instances.h"

namespace assay::faults {

struct ModelSizes {
  DType activation = DType::kBf16;
  int32_t hidden = 96;  // a multiple of 16
  int32_t vocab = 300, real_vocab = 290;
  int32_t heads = 4, kv_heads = 2, head_dim = 32, rotary_dim = 8;
  int32_t key_heads = 2, value_heads = 4, key_dim = 32, value_dim = 32;
  int32_t experts = 8, top_k = 3, intermediate = 48;  // intermediate: a multiple of 16
  int32_t fused = 160;                                // outputs of the fused projection
  int32_t tokens = 512, sequences = 64;

  // Longer than every block, panel and strip of the fast rows, and a multiple of few.
  static ModelSizes wide(DType activation);
  // Any sizes that the rows take, most of them small.
  static ModelSizes random(uint64_t seed);
};

struct SizedModel {
  SizedModel(const ModelSizes& sizes, uint64_t seed, int threads);
  std::unique_ptr<device::Device> device;
  ops::CaseWeights weights;
  ops::Instances instances;
};

}  // namespace assay::faults

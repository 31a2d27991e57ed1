#include "sized_model.h"

#include <algorithm>
#include <cmath>

#include "backend/cpu/cpu_device.h"

namespace assay::faults {

using numeric::WeightFormat;

ModelSizes ModelSizes::wide(DType activation) {
  ModelSizes sizes;
  sizes.activation = activation;
  sizes.hidden = 2160;
  sizes.vocab = 2601, sizes.real_vocab = 2571;  // three blocks of sample
  sizes.heads = 6, sizes.kv_heads = 2, sizes.head_dim = 144, sizes.rotary_dim = 64;
  sizes.key_heads = 2, sizes.value_heads = 4, sizes.key_dim = 72, sizes.value_dim = 120;
  sizes.experts = 23, sizes.top_k = 5, sizes.intermediate = 1024;
  sizes.fused = 209;
  return sizes;
}

ModelSizes ModelSizes::random(uint64_t seed) {
  ops::CaseRandom random(seed);
  const auto between = [&](int64_t low, int64_t high) {
    return static_cast<int32_t>(low + random.below(high - low + 1));
  };
  ModelSizes sizes;
  sizes.activation = random.below(3) == 0 ? DType::kF32 : DType::kBf16;
  sizes.hidden = 16 * (random.below(8) == 0 ? between(64, 140) : between(1, 24));
  sizes.real_vocab = between(40, 900);
  sizes.vocab = sizes.real_vocab + between(0, 40);
  sizes.kv_heads = between(1, 3);
  sizes.heads = sizes.kv_heads * between(1, 8);
  sizes.head_dim = 8 * between(2, 20);
  sizes.rotary_dim = 2 * between(1, sizes.head_dim / 2);
  sizes.key_heads = between(1, 3);
  sizes.value_heads = sizes.key_heads * between(1, 3);
  sizes.key_dim = between(2, 96);
  sizes.value_dim = between(1, 150);
  sizes.experts = between(1, 40);
  sizes.top_k = between(1, std::min(sizes.experts, 10));
  sizes.intermediate = 16 * between(1, 20);
  sizes.fused = between(1, 400);
  sizes.tokens = between(1, 300);
  sizes.sequences = between(1, std::min(sizes.tokens, 40));
  return sizes;
}

SizedModel::SizedModel(const ModelSizes& sizes, uint64_t seed, int threads)
    : device(cpu::make_cpu_device(threads)), weights(*device) {
  using namespace ops;
  CaseRandom random(seed);
  const DType activation = sizes.activation;
  const int32_t hidden = sizes.hidden;
  const Bucket bucket{sizes.tokens, sizes.sequences, sizes.tokens};
  const auto linear = [&](int64_t n, int64_t k, WeightFormat format, DType output) {
    const LinearDesc desc{n, k, format, weight_only_lane(format), activation, output};
    const double magnitude = 1 / std::sqrt(static_cast<double>(k));
    instances.add<LinearOp>({desc, bucket, {weights.add({{format, n, k}}, magnitude, random)}});
  };
  const auto vector = [&](int64_t width) { return weights.add({{WeightFormat::kBf16, 1, width}}, 0.5, random); };
  const auto table = weights.add({{WeightFormat::kBf16, sizes.vocab, hidden}}, 1, random);
  instances.add<EmbedOp>({{sizes.vocab, hidden, WeightFormat::kBf16, activation}, bucket, {table}});
  linear(sizes.vocab, hidden, WeightFormat::kBf16, DType::kF32);
  linear(sizes.fused, hidden, WeightFormat::kNvfp4, activation);
  linear(hidden, std::max(1, sizes.fused - 1), WeightFormat::kF16, activation);
  linear(sizes.fused, hidden - 3, WeightFormat::kF32, activation);
  instances.add<RmsNormOp>({{NormKind::kZeroCentred, hidden, 1, 1e-6f, false, activation}, bucket, {vector(hidden)}});
  instances.add<RmsNormOp>({{NormKind::kGated, sizes.value_dim, sizes.value_heads, 1e-6f, false, activation},
                            bucket,
                            {vector(sizes.value_dim)}});
  instances.add<QkNormRopeOp>(
      {{sizes.heads, sizes.kv_heads, sizes.head_dim, sizes.rotary_dim, 1e4, 1e-6f, true, activation, activation},
       bucket,
       {vector(sizes.head_dim), vector(sizes.head_dim)}});
  const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(sizes.head_dim)));
  instances.add<AttentionOp>(
      {{sizes.heads, sizes.kv_heads, sizes.head_dim, scale, true, activation, activation}, bucket, {}});
  const int64_t channels = 2 * sizes.key_heads * sizes.key_dim + sizes.value_heads * sizes.value_dim;
  const ConvGatesOp::Weights conv{weights.add({{WeightFormat::kBf16, channels, 4}}, 0.5, random),
                                  vector(sizes.value_heads), vector(sizes.value_heads)};
  instances.add<ConvGatesOp>(
      {{sizes.key_heads, sizes.value_heads, sizes.key_dim, sizes.value_dim, 4, activation}, bucket, conv});
  instances.add<GatedDeltaOp>(
      {{sizes.key_heads, sizes.value_heads, sizes.key_dim, sizes.value_dim, activation}, bucket, {}});
  const auto gate = weights.add({{WeightFormat::kBf16, sizes.experts, hidden}}, 0.3, random);
  instances.add<RouterOp>(
      {{hidden, sizes.experts, sizes.top_k, true, WeightFormat::kBf16, activation}, bucket, {gate, vector(hidden)}});
  std::vector<CaseWeights::Shape> experts;
  for (int e = 0; e < sizes.experts; ++e) {
    experts.push_back({WeightFormat::kNvfp4, sizes.intermediate, hidden});
    experts.push_back({WeightFormat::kNvfp4, sizes.intermediate, hidden});
    experts.push_back({WeightFormat::kNvfp4, hidden, sizes.intermediate});
  }
  instances.add<ExpertsOp>(
      {{hidden, sizes.intermediate, sizes.experts, sizes.top_k, WeightFormat::kNvfp4, Lane::kW4A16, activation},
       bucket,
       {weights.add(experts, 0.1, random)}});
  instances.add<SiluMulOp>({{sizes.intermediate, activation}, bucket, {}});
  instances.add<SampleOp>({{sizes.vocab, sizes.real_vocab}, bucket, {}});
}

}  // namespace assay::faults

// What tests of the proof share: the ops of a small mixture-of-experts model with a gated delta net, and running the
// kernel evidence over them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/cpu/cpu_device.h"
#include "ops/all_ops.h"
#include "ops/cases.h"
#include "proof/kernels.h"

namespace assay::proof::testing {

struct SmallModel {
  explicit SmallModel(DType activation = DType::kBf16, int threads = 2)
      : device(cpu::make_cpu_device(threads)), weights(*device) {
    using namespace ops;
    using numeric::WeightFormat;
    CaseRandom random(7);
    const Bucket bucket{512, 64, 512};
    const auto linear = [&](int64_t n, int64_t k, WeightFormat format, DType output) {
      const LinearDesc desc{n, k, format, weight_only_lane(format), activation, output};
      instances.add<LinearOp>({desc, bucket, {weights.add({{format, n, k}}, 0.1, random)}});
    };
    const auto vector = [&](int64_t width) { return weights.add({{WeightFormat::kBf16, 1, width}}, 0.5, random); };
    instances.add<EmbedOp>({{300, 96, WeightFormat::kBf16, activation},
                            bucket,
                            {weights.add({{WeightFormat::kBf16, 300, 96}}, 1, random)}});
    linear(300, 96, WeightFormat::kBf16, DType::kF32);
    linear(160, 96, WeightFormat::kNvfp4, activation);
    linear(96, 80, WeightFormat::kF16, activation);
    linear(72, 141, WeightFormat::kF32, activation);
    instances.add<RmsNormOp>({{NormKind::kZeroCentred, 96, 1, 1e-6f, false, activation}, bucket, {vector(96)}});
    instances.add<RmsNormOp>({{NormKind::kGated, 32, 4, 1e-6f, false, activation}, bucket, {vector(32)}});
    instances.add<QkNormRopeOp>(
        {{4, 2, 32, 8, 1e4, 1e-6f, true, activation, activation}, bucket, {vector(32), vector(32)}});
    instances.add<AttentionOp>({{4, 2, 32, 0.17677669f, true, activation, activation}, bucket, {}});
    ConvGatesOp::Weights conv{weights.add({{WeightFormat::kBf16, 2 * 2 * 32 + 4 * 32, 4}}, 0.5, random), vector(4),
                              vector(4)};
    instances.add<ConvGatesOp>({{2, 4, 32, 32, 4, activation}, bucket, conv});
    instances.add<GatedDeltaOp>({{2, 4, 32, 32, activation}, bucket, {}});
    instances.add<RouterOp>({{96, 8, 3, true, WeightFormat::kBf16, activation},
                             bucket,
                             {weights.add({{WeightFormat::kBf16, 8, 96}}, 0.3, random), vector(96)}});
    std::vector<CaseWeights::Shape> experts;
    for (int e = 0; e < 8; ++e) {
      experts.push_back({WeightFormat::kNvfp4, 48, 96});
      experts.push_back({WeightFormat::kNvfp4, 48, 96});
      experts.push_back({WeightFormat::kNvfp4, 96, 48});
    }
    instances.add<ExpertsOp>(
        {{96, 48, 8, 3, WeightFormat::kNvfp4, Lane::kW4A16, activation}, bucket, {weights.add(experts, 0.1, random)}});
    instances.add<SiluMulOp>({{80, activation}, bucket, {}});
    instances.add<SampleOp>({{300, 290}, bucket, {}});
  }

  std::unique_ptr<device::Device> device;
  ops::CaseWeights weights;
  ops::Instances instances;
};

class Collector : public KernelSink {
 public:
  explicit Collector(std::string op = "", std::string row = "") : op_(std::move(op)), row_(std::move(row)) {}
  bool wanted(std::string_view op, const std::string&, std::string_view row) override {
    return (op_.empty() || op_ == op) && (row_.empty() || row_ == row);
  }
  void begin(std::string_view, const std::string&, std::string_view) override {}
  void done(Verdict verdict) override { verdicts.push_back(std::move(verdict)); }
  std::vector<Verdict> verdicts;

 private:
  std::string op_, row_;
};

inline std::vector<Verdict> prove(SmallModel& model, const KernelOptions& options, const std::string& op = "",
                                  const std::string& row = "") {
  Collector collector(op, row);
  prove_kernels(model.instances, *model.device, model.weights, options, collector);
  judge_orders(collector.verdicts);
  return std::move(collector.verdicts);
}

}  // namespace assay::proof::testing

// silu_mul, the definition: in fp64, rounded once.
#include "ops/reference.h"
#include "ops/refusals.h"
#include "ops/silu_mul/silu_mul_rows.h"

namespace assay::ops {
namespace {

class SiluMulReference : public Plan<SiluMulOp::Args> {
 public:
  explicit SiluMulReference(const SiluMulDesc& desc) : desc_(desc) {}

  void enqueue(const SiluMulOp::Args& args, const Launch&) const override {
    for (int32_t t = 0; t < args.tokens.total; ++t) {
      for (int64_t i = 0; i < desc_.width; ++i) {
        const double gate = reference::load(args.gate_up, t, i), up = reference::load(args.gate_up, t, desc_.width + i);
        reference::store(args.y, t, i, reference::silu(gate) * up);
      }
    }
  }

 private:
  SiluMulDesc desc_;
};

}  // namespace

const Impl<SiluMulOp> kSiluMulReference{
    .name = "reference",
    .backend = Backend::kCpu,
    .order = [](const SiluMulDesc&) { return order_id("silu_mul fp64"); },
    .layout = nullptr,
    .can_run = [](const SiluMulDesc& desc, const DeviceCaps&) { return refuse_activation(desc.activation); },
    .workspace_bytes = [](const SiluMulDesc&, const Bucket&, MakeContext&) { return size_t{0}; },
    .make = [](const SiluMulDesc& desc, const Bucket&, const NoWeights&, MakeContext&) -> Result<PlanPtr<SiluMulOp>> {
      return PlanPtr<SiluMulOp>(std::make_unique<SiluMulReference>(desc));
    },
};

}  // namespace assay::ops

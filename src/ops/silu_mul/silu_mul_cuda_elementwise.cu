// silu_mul: one thread a value. Bytes: gate, up and y once. Bound: device memory.
#include "backend/cuda/convert.cuh"
#include "backend/cuda/launch.h"
#include "backend/cuda/overlap.cuh"
#include "ops/plan_cuda.h"
#include "ops/silu_mul/silu_mul_rows.h"

namespace assay::ops {
namespace {

__global__ void __launch_bounds__(256) silu_mul(int64_t width, SiluMulOp::Args args) {
  cuda::begin_overlapped();
  const int64_t t = blockIdx.y, i = int64_t{blockIdx.x} * 256 + threadIdx.x;
  if (i >= width || t >= (args.tokens.live == nullptr ? args.tokens.total : args.tokens.live[1])) return;
  const auto* row = static_cast<const cuda::Bf16Bits*>(args.gate_up.data) + t * args.gate_up.stride;
  static_cast<cuda::Bf16Bits*>(args.y.data)[t * args.y.stride + i] =
      cuda::to_bf16(cuda::silu(cuda::to_float(row[i])) * cuda::to_float(row[width + i]));
}

void enqueue(const SiluMulDesc& desc, const SiluMulOp::Args& args, const Launch& launch) {
  cuda::launch("silu_mul cuda_elementwise", cuda::Start::kOverlap, silu_mul,
               dim3(cuda::blocks_for(desc.width, 256), args.tokens.total), 256, 0, launch.stream, desc.width, args);
}

}  // namespace

const Impl<SiluMulOp> kSiluMulCudaElementwise = {
    .name = "cuda_elementwise",
    .backend = Backend::kCuda,
    .order = [](const SiluMulDesc&) { return order_id("cuda expf"); },
    .layout = cuda_row::no_layout<SiluMulOp>,
    .can_run = [](const SiluMulDesc& desc, const DeviceCaps&) -> Refusal {
      if (desc.activation != DType::kBf16) return "activations must be bf16";
      return std::nullopt;
    },
    .workspace_bytes = cuda_row::no_workspace<SiluMulOp>,
    .make = [](const SiluMulDesc& desc, const Bucket&, const NoWeights&, MakeContext&) -> Result<PlanPtr<SiluMulOp>> {
      return cuda_row::make_plan<SiluMulOp, SiluMulDesc, enqueue>(desc);
    },
};

}  // namespace assay::ops

// silu_mul, the CUDA definition: one thread a value, fp64.
#include "ops/reference_cuda.cuh"
#include "ops/silu_mul/silu_mul_rows.h"

namespace assay::ops {
namespace {

using namespace reference_cuda;

__global__ void silu_mul(SiluMulDesc desc, SiluMulOp::Args args) {
  const int64_t index = thread_index();
  const int64_t t = index / desc.width, col = index % desc.width;
  if (t >= live_total(args.tokens)) return;
  store(args.y, t, col, silu(load(args.gate_up, t, col)) * load(args.gate_up, t, desc.width + col));
}

void enqueue(const SiluMulDesc& desc, const SiluMulOp::Args& args, const Launch& launch) {
  cuda::launch("silu_mul cuda_reference", silu_mul, cuda::blocks_for(args.tokens.total * desc.width, 128), 128, 0,
               launch.stream, desc, args);
}

}  // namespace

const Impl<SiluMulOp> kSiluMulCudaReference = {
    .name = "cuda_reference",
    .backend = Backend::kCuda,
    .order = cuda_row::no_order<SiluMulOp>,
    .layout = cuda_row::no_layout<SiluMulOp>,
    .can_run = [](const SiluMulDesc& desc, const DeviceCaps&) { return cuda_row::refuse_dtype(desc.activation); },
    .workspace_bytes = cuda_row::no_workspace<SiluMulOp>,
    .make = [](const SiluMulDesc& desc, const Bucket&, const NoWeights&, MakeContext&) -> Result<PlanPtr<SiluMulOp>> {
      return cuda_row::make_plan<SiluMulOp, SiluMulDesc, enqueue>(desc);
    },
};

}  // namespace assay::ops

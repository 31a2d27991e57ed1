// router by vdpbf16ps; kernel: ops/dot_kernels_avx512_bf16.cc.
#include "ops/router/router_cpu_dot.h"

namespace assay::ops {

const Impl<RouterOp> kRouterCpuAvx512Bf16 = router_cpu_dot<kCpuAvx512Bf16>();

}  // namespace assay::ops

// router in AVX-512 fp32; kernel: ops/dot_kernels_avx512.cc.
#include "ops/router/router_cpu_dot.h"

namespace assay::ops {

const Impl<RouterOp> kRouterCpuAvx512 = router_cpu_dot<kCpuAvx512>();

}  // namespace assay::ops

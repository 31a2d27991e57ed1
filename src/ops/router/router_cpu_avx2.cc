// router in AVX2 with FMA; kernel: ops/dot_kernels_avx2.cc.
#include "ops/router/router_cpu_dot.h"

namespace assay::ops {

const Impl<RouterOp> kRouterCpuAvx2 = router_cpu_dot<kCpuAvx2>();

}  // namespace assay::ops

#include "ops/sample/sample_rows.h"

namespace assay::ops {

std::string describe(const SampleDesc& desc) {
  return fmt::format("vocab={} real_vocab={}", desc.vocab, desc.real_vocab);
}

std::span<const Impl<SampleOp>> SampleOp::impls() {
  static const Impl<SampleOp> rows[] = {
#if ASSAY_WITH_CUDA
    kSampleCudaParts,
    kSampleCudaReference,
#endif
    kSampleCpuPortable,
    kSampleReference,
  };
  return rows;
}

}  // namespace assay::ops

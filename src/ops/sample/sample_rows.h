// The rows of sample, and what none of them can run.
#pragma once

#include "ops/sample/sample.h"

namespace assay::ops {

extern const Impl<SampleOp> kSampleReference;
extern const Impl<SampleOp> kSampleCpuPortable;
extern const Impl<SampleOp> kSampleCudaReference;
extern const Impl<SampleOp> kSampleCudaParts;

inline Refusal refuse_sample(const SampleDesc& desc, const DeviceCaps&) {
  if (desc.real_vocab <= 0 || desc.real_vocab > desc.vocab) return "real_vocab must be in [1, vocab]";
  return {};
}

}  // namespace assay::ops

// What this GPU can do, measured: the figures that speeds of rows are shares of.
#pragma once

#include "device/device.h"

namespace assay::cuda {

struct Limits {
  double copy = 0;      // bytes/s read plus written, by a kernel over buffers of at least 8 times the L2
  double mma_bf16 = 0;  // FLOP/s of mma.sync m16n8k16 from registers, all multiprocessors; a multiply-add is two
};

// Medians of several runs, some milliseconds each. Errors: kResource if the buffers do not fit.
Result<Limits> measure_limits(device::Device& device);

}  // namespace assay::cuda

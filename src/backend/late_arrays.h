// LateArrays: inputs that come late. A kernel may begin before the one ahead of it in the stream has ended
// (cuda/overlap.cuh); one that then reads without waiting finds here what is not yet there.
#pragma once

#include <memory>
#include <vector>

#include "base/bytes.h"
#include "device/device.h"

namespace assay::backend {

class LateArrays {
 public:
  virtual ~LateArrays() = default;
  virtual void withhold() = 0;  // the arrays hold zeros
  // Enqueues a kernel that lets the next one begin at once, takes its time, and gives the arrays their bytes back. May
  // be recorded.
  virtual void enqueue() = 0;
};

// Arrays of the device, as they are now. Null where no work overlaps, or without memory for copies.
std::unique_ptr<LateArrays> make_late_arrays(device::Device& device, std::vector<MutableBytes> arrays);

}  // namespace assay::backend

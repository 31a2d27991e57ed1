// OtherWork: somebody else's work on a device, for as long as the object lives, on a stream of its own. Rows must give
// the same bits beside it: what one thread or block may rely on of another shows when they no longer run in step.
#pragma once

#include <memory>

#include "device/device.h"

namespace assay::backend {

class OtherWork {
 public:
  virtual ~OtherWork() = default;  // ends the work
};

// CPU: a thread that passes over 8 MB in bursts of 20 to 300 us with pauses as long. GPU: on a second stream in turn
// copies and fills of 64 MB, and work for one scheduler of each multiprocessor alone. Null where the memory for it is
// not there.
std::unique_ptr<OtherWork> start_other_work(device::Device& device);

}  // namespace assay::backend

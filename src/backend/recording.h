// Recording: work of a device's stream kept to be run again on the same addresses, as served steps of a GPU run.
#pragma once

#include <functional>
#include <memory>

#include "device/device.h"

namespace assay::backend {

class Recording {
 public:
  virtual ~Recording() = default;
  virtual void replay() = 0;  // enqueues it on the device's stream
};

// What `enqueue` puts on the device's stream, without running it; null on a device that keeps no work. Errors:
// kInternal, of work that cannot be kept: it allocates, waits or leaves the stream.
Result<std::unique_ptr<Recording>> record(device::Device& device, const std::function<void()>& enqueue);

}  // namespace assay::backend

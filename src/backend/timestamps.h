// Timestamps: when a device's stream passed numbered points.
//
// Owner: whoever measures. Thread: the one that enqueues.
#pragma once

#include <cstddef>
#include <memory>

#include "device/device.h"

namespace assay::backend {

class Timestamps {
 public:
  virtual ~Timestamps() = default;
  // Enqueued like work. Captured with the work around it, it notes the time of every replay.
  virtual void mark(size_t point) = 0;
  // Between two points that the stream has passed; the resolution is a microsecond or better.
  virtual double microseconds(size_t from, size_t to) const = 0;
};

std::unique_ptr<Timestamps> make_timestamps(const device::Stream& stream, size_t points);

}  // namespace assay::backend

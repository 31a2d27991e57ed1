// HostLink: copies between the host and a device in the order of its stream, for which nobody waits, marks in that
// order, for which one can, and the small chores between two steps.
//
// Owner: the engine. Thread: the engine thread. Lifetime: shorter than the device's.
#pragma once

#include <memory>
#include <span>

#include "base/bytes.h"
#include "base/result.h"
#include "device/device.h"

namespace assay::backend {

// The same places of an array: of place p `rows` pieces of row_bytes bytes (an even number), row_stride bytes apart,
// the first at base + p * place_stride.
struct Places {
  std::byte* base = nullptr;
  int64_t place_stride = 0;
  int64_t row_stride = 0;
  int32_t rows = 1;
  int32_t row_bytes = 0;
};

class HostLink {
 public:
  virtual ~HostLink() = default;
  // Whether work enqueued on the device goes on while the host does something else.
  virtual bool runs_ahead() const = 0;
  // Host memory that upload() and download() may use, zeroed; lives as long as the link. Errors: kResource.
  virtual Result<MutableBytes> allocate(size_t bytes) = 0;
  // The host's side must stay as it is until a mark set afterwards is reached.
  virtual void upload(void* to, const void* from, size_t bytes) = 0;
  virtual void download(void* to, const void* from, size_t bytes) = 0;
  // Ids that the device alone knows: each ids[t] = -1 - i, t < count, becomes from[i * stride], or 0 where that is
  // negative. All memory is the device's.
  virtual void resolve(int32_t* ids, int32_t count, const int32_t* from, int32_t stride) = 0;
  // Sets all bytes of the given places of `arrays`, which are in the device's memory, to 0xff: NaN in any float.
  virtual void poison(const Places* arrays, int32_t count, std::span<const int32_t> places) = 0;
  // Puts mark `index` (0 to kMarks - 1) behind all work enqueued so far.
  static constexpr int kMarks = 8;
  virtual void mark(int index) = 0;
  // Waits until the stream reaches the mark where it was put last.
  virtual void wait(int index) = 0;
};

std::unique_ptr<HostLink> make_host_link(device::Device& device);

}  // namespace assay::backend

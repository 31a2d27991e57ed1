// StateMemory: the device memory behind KV pages and recurrent-state slots. Which are free is the scheduler's business.
//
// Pages and slots hold NaNs until written, and again once freed, as poison() says: a read of what nobody wrote shows in
// the logits. Owner: the engine. Thread: the engine thread.
#pragma once

#include <span>
#include <vector>

#include "backend/host_link.h"
#include "base/result.h"
#include "device/device.h"
#include "models/model.h"

namespace assay::engine {

struct StateSizes {
  int32_t page_tokens = 0;
  int32_t page_count = 0;
  int32_t slot_count = 0;
};

class StateMemory {
 public:
  // activation: dtype of KV and of stored convolution inputs.
  static Result<StateMemory> make(device::Device& device, const models::StateShape& shape, const StateSizes& sizes,
                                  DType activation);

  static int64_t page_bytes(const models::StateShape& shape, int32_t page_tokens,
                            DType activation);  // over all layers
  static int64_t slot_bytes(const models::StateShape& shape, DType activation);

  std::span<const ops::KvCacheView> kv() const { return kv_; }  // by layer
  std::span<const ops::RecurrentStateView> recurrent() const { return recurrent_; }
  // Of a page everything, of a slot the stored inputs and every head's first row of state: whoever reads the slot meets
  // them in each sum. Waits for nothing.
  void poison(backend::HostLink& link, std::span<const int32_t> pages, std::span<const int32_t> slots);
  // Seeded uniform noise in [-1, 1) in all pages and slots, for whoever times steps on state that nobody computed.
  void fill_noise(uint64_t seed);

 private:
  Result<ops::KvCacheView> kv_layer(const models::StateShape& shape, const StateSizes& sizes, DType activation);
  Result<ops::RecurrentStateView> recurrent_layer(const models::StateShape& shape, const StateSizes& sizes,
                                                  DType activation);
  Result<void*> allocate(size_t bytes);
  Result<void> list_places(const models::StateShape& shape);
  Result<device::Buffer> upload(const std::vector<backend::Places>& arrays);

  void fill_noise(void* to, DType dtype, int64_t elements, uint64_t seed);

  device::Device* device_ = nullptr;
  StateSizes sizes_;
  std::vector<device::Buffer> buffers_;
  std::vector<ops::KvCacheView> kv_;
  std::vector<ops::RecurrentStateView> recurrent_;
  // What poison() poisons, in the device's memory.
  int32_t page_arrays_ = 0;
  int32_t slot_arrays_ = 0;
  device::Buffer page_places_;
  device::Buffer slot_places_;
};

}  // namespace assay::engine

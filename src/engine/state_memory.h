// StateMemory: the device memory behind KV pages and recurrent-state slots. Which are free is the scheduler's business.
//
// Pages and slots hold NaNs until written, and again once freed: a read of what nobody wrote shows in the logits.
// Owner: the engine. Thread: the engine thread.
#pragma once

#include <span>
#include <vector>

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

  static int64_t page_bytes(const models::StateShape& shape, int32_t page_tokens, DType activation);  // over all layers
  static int64_t slot_bytes(const models::StateShape& shape, DType activation);

  std::span<const ops::KvCacheView> kv() const { return kv_; }  // by layer
  std::span<const ops::RecurrentStateView> recurrent() const { return recurrent_; }
  void poison_page(int32_t page);
  void poison_slot(int32_t slot);

 private:
  Result<ops::KvCacheView> kv_layer(const models::StateShape& shape, const StateSizes& sizes, DType activation);
  Result<ops::RecurrentStateView> recurrent_layer(const models::StateShape& shape, const StateSizes& sizes,
                                                  DType activation);
  Result<void*> allocate(size_t bytes);

  device::Device* device_ = nullptr;
  std::vector<device::Buffer> buffers_;
  std::vector<ops::KvCacheView> kv_;
  std::vector<ops::RecurrentStateView> recurrent_;
};

}  // namespace assay::engine

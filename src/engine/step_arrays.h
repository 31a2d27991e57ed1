// StepArrays: a step flattened into the arrays that ops read, placed in one block of device memory.
//
// Owner: the engine. Thread: the engine thread. Sized once for the largest step; fill() allocates nothing.
#pragma once

#include <span>
#include <vector>

#include "base/result.h"
#include "device/device.h"
#include "engine/engine.h"

namespace assay::engine {

class StepArrays {
 public:
  static Result<StepArrays> make(device::Device& device, const EngineLimits& limits);

  // Checks the step's invariants (step.h) and uploads its arrays. `ids` are the tokens' resolved ids.
  void fill(const Step& step, std::span<const int32_t> ids);

  const ops::BatchView& batch() const { return batch_; }
  ops::ConstView ids() const { return {ids_, DType::kI32, batch_.tokens.total, 1}; }
  const int32_t* output_tokens() const { return output_tokens_; }

 private:
  // Appends values to the staging block; returns where they will be on the device.
  template <class Fill>
  const int32_t* place(size_t count, const Fill& fill);

  device::Device* device_ = nullptr;
  device::Buffer memory_;
  std::vector<int32_t> staging_;
  size_t used_ = 0;
  EngineLimits limits_;
  ops::BatchView batch_;
  const int32_t* ids_ = nullptr;
  const int32_t* output_tokens_ = nullptr;
};

// Our own bug if a step breaks an invariant of step.h: CHECKs, naming it.
void check_step(const Step& step, const EngineLimits& limits);

}  // namespace assay::engine

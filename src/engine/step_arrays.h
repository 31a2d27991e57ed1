// StepArrays: a step flattened into the arrays that ops read, placed in one block of device memory.
//
// Owner: the engine. Thread: the engine thread. Sized once for the largest step; fill() allocates nothing. Equal shapes
// lie at equal addresses.
#pragma once

#include <span>
#include <vector>

#include "backend/host_link.h"
#include "base/result.h"
#include "device/device.h"
#include "engine/engine.h"

namespace assay::engine {

// What fixes all launches of a step: how many of what its arrays have room for.
struct StepShape {
  int32_t tokens = 0;
  int32_t rows = 0;
  int32_t outputs = 0;
  int32_t page_stride = 1;

  // Of a step as it is; page strides come in few sizes.
  static StepShape of(const Step& step, const EngineLimits& limits);
  // The same for somewhat larger steps too: what a captured graph has room for.
  StepShape bucket(const EngineLimits& limits) const;
  uint64_t key() const;
};

class StepArrays {
 public:
  static Result<StepArrays> make(device::Device& device, backend::HostLink& link, const EngineLimits& limits);
  static int64_t bytes(const EngineLimits& limits);  // of device memory

  // Checks the step's invariants (step.h) and uploads its arrays; nobody waits, and the arrays of max_in_flight steps
  // may be on their way. `ids` are the tokens' ids, as ids() will hold them. With `bounds`, for steps without prefill,
  // the counts of batch() and outputs() are the shape's, bounds that a captured graph has room for, and `live` points
  // to the step's own; else they are the step's own, which are the shape's.
  void fill(const Step& step, std::span<const int32_t> ids, const StepShape& shape, bool bounds);
  // The same with bounds and nothing live.
  void fill_empty(const StepShape& shape);

  const ops::BatchView& batch() const { return batch_; }
  const ops::TokenCounts& outputs() const { return outputs_; }
  const int32_t* live_outputs() const { return outputs_.live == nullptr ? nullptr : outputs_.live + 1; }
  ops::ConstView ids() const { return {ids_, DType::kI32, batch_.tokens.total, 1}; }
  int32_t* ids_data() const { return ids_; }
  const int32_t* output_tokens() const { return output_tokens_; }

 private:
  // Room for `count` values in the staging block, and where they will be on the device.
  struct Room {
    int32_t* host;
    int32_t* device;
  };
  Room take(int32_t count);
  void lay_out(const StepShape& shape);
  void bound(const StepShape& shape);

  struct Rooms {
    Room live, ids, positions, sequence_of, query_start, page_table, state_read, state_write, output_tokens;
  };

  backend::HostLink* link_ = nullptr;
  device::Buffer memory_;
  std::vector<MutableBytes> staging_;  // one for each step in flight
  size_t turn_ = 0;
  int32_t used_ = 0;
  EngineLimits limits_;
  Rooms rooms_;
  ops::BatchView batch_;
  ops::TokenCounts outputs_;
  int32_t* ids_ = nullptr;
  const int32_t* output_tokens_ = nullptr;
};

// Our own bug if a step breaks an invariant of step.h: CHECKs, naming it.
void check_step(const Step& step, const EngineLimits& limits);

}  // namespace assay::engine

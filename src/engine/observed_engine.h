// ObservedEngine: an engine that a benchmark may look into. Serving needs none of this.
#pragma once

#include "device/device.h"
#include "engine/load.h"
#include "ops/observer.h"

namespace assay::engine {

class ObservedEngine : public LocalEngine {
 public:
  virtual device::Device& device() = 0;
  // Seeded noise in place of all KV pages and recurrent states: steps at a context that nobody computed.
  virtual void fill_state(uint64_t seed) = 0;
};

// As load(). `observer` (null: nobody) is told of every op that a step enqueues and outlives the engine.
Result<std::unique_ptr<ObservedEngine>> load_observed(const LoadOptions& options, ops::OpObserver* observer);

}  // namespace assay::engine

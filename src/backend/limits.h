// What a device can do, measured: the figures that speeds are shares of.
#pragma once

#include <string>
#include <vector>

#include "device/device.h"

namespace assay::backend {

struct Figure {
  std::string key;     // in JSON, ends in the unit
  std::string label;   // for people
  double value = 0;    // per second; 0 where the device cannot
  bool flops = false;  // FLOP/s, else bytes/s
  double burst = 0;    // on a CPU: of the best half millisecond or so; `value` is of the best whole pass
};

struct Limits {
  std::vector<Figure> figures;
  size_t cache_bytes = 0;  // of the last level
  double memory = 0;       // bytes/s: read on a CPU, copied (read plus written) on a GPU
  double cache = 0;        // bytes/s read; 0: not measured
  double flops = 0;        // FLOP/s, the best of all instructions

  // Bytes/s that work over so many bytes, again and again, may reach.
  double bandwidth(size_t working_set) const { return cache > 0 && working_set <= cache_bytes ? cache : memory; }
};

// Of two measurements of one device: the higher figure of each.
Limits best_of(Limits one, const Limits& other);

// Seconds. Errors: kResource if the buffers, several times the cache, do not fit.
Result<Limits> measure_limits(device::Device& device);

}  // namespace assay::backend

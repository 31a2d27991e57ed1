// The seam between formulas and kernels: op, row, plan.
//
// An *op* is a struct that names its parts:
//   struct LinearOp { static constexpr std::string_view kName; using Desc, Weights, Args;
//                     static std::span<const Impl<LinearOp>> impls(); };
// Desc holds what changes which code runs and is equality comparable; `std::string describe(const Desc&)` prints it.
// A *row* is one Impl: one implementation, in the file `<op>_<row name>.*`. `impls()` lists rows best first, reference
// last. A *plan* is a row made ready for one Desc, bucket and set of weights.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "device/comm.h"
#include "device/device.h"
#include "device/view.h"
#include "ops/weight.h"

namespace assay::ops {

using device::Backend;
using device::ConstView;
using device::DeviceCaps;
using device::View;

// The arithmetic a row promises. A Desc names the lane it wants; rows of another lane refuse.
enum class Lane : uint8_t {
  kBf16,   // weights and activations as stored, fp32 accumulation
  kW4A16,  // 4-bit weights decoded exactly, activations as they are, fp32 accumulation
  kW4A4,   // activations first quantised by the format's own rule
};

// Names an order of additions. Two rows whose ids are equal for a Desc agree bit for bit. 0: no promise.
enum class OrderId : uint64_t { kNone = 0 };

// FNV-1a of a short description, so that equal descriptions give equal ids.
constexpr OrderId order_id(std::string_view text) {
  uint64_t hash = 14695981039346656037ull;
  for (char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 1099511628211ull;
  return OrderId{hash};
}

// Why a row cannot run a Desc on a device; nullopt when it can.
using Refusal = std::optional<std::string>;

// The most tokens a plan will see. Plans are made per bucket at load; nothing is selected on the hot path.
struct Bucket {
  int32_t tokens = 0;
  int32_t sequences = 0;
  int32_t outputs = 0;  // tokens whose logits are wanted
  bool operator==(const Bucket&) const = default;
};

// Always-on checks: bit flags, one word per layer, that travel with the sampled tokens. Written by ops that read the
// residual stream or write KV and state; words are only ever OR-ed into.
struct Sentinel {
  static constexpr uint32_t kNonFiniteResidual = 1;
  static constexpr uint32_t kNonFiniteKv = 2;
  static constexpr uint32_t kNonFiniteState = 4;
  static constexpr uint32_t kNonFiniteLogits = 8;
  uint32_t* words = nullptr;  // [layers + 1], device memory; the last word is the head's
};

// Sees intermediate values at named sites: goldens, audits, forced choices. Views are valid during the call only.
class Taps {
 public:
  virtual ~Taps() = default;
  virtual void record(std::string_view site, int layer, const ConstView& value) = 0;
};

// How one enqueue runs.
struct Launch {
  device::Stream stream;
  View workspace;                      // kU8 [1, bytes]: at least what workspace_bytes() said
  Sentinel* flags = nullptr;           // null: no checks wanted
  Taps* taps = nullptr;                // null: nobody looks
  const device::Comm* comm = nullptr;  // null: one rank
  int layer = 0;                       // for flags, taps and traces
};

template <class Args>
class Plan {  // immutable after make(), thread-safe
 public:
  virtual ~Plan() = default;
  // No allocation, no wait, capturable in a graph.
  virtual void enqueue(const Args&, const Launch&) const = 0;
};

class Selector;

// What make() may use.
struct MakeContext {
  const DeviceCaps& caps;
  WeightProvider& weights;
  Selector& selector;  // for block rows, which are made of part plans
};

template <class Op>
struct Impl {
  using Desc = typename Op::Desc;
  using Args = typename Op::Args;
  using Weights = typename Op::Weights;

  const char* name;                // equals the file suffix
  std::optional<Backend> backend;  // none: any, a row made of part plans
  OrderId (*order)(const Desc&);
  LayoutId (*layout)(const Desc&);  // of the op's matrix; null for ops without one. Vectors are read from the file.
  Refusal (*can_run)(const Desc&, const DeviceCaps&);
  size_t (*workspace_bytes)(const Desc&, const Bucket&, MakeContext&);
  // May be slow: packs weights, tunes.
  Result<std::unique_ptr<Plan<Args>>> (*make)(const Desc&, const Bucket&, const Weights&, MakeContext&);
};

template <class Op>
using PlanPtr = std::unique_ptr<Plan<typename Op::Args>>;

// A weightless op's Weights.
struct NoWeights {};

}  // namespace assay::ops

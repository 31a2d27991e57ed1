// Weights as ops see them: what the checkpoint says, how a row wants them packed, and where the packed bytes are.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "numeric/weight_format.h"

namespace assay::ops {

// The checkpoint matrices behind one logical weight, in the order the op's header gives:
//   linear   shards along N, one below the other, all of one format (global scales may differ)
//   experts  gate, up, down of expert 0, then of expert 1, ...
//   others   one matrix; a vector of n values is [1, n]
struct WeightSource {
  std::string name;
  std::vector<numeric::EncodedMatrix> matrices;

  int64_t rows() const {
    int64_t sum = 0;
    for (const auto& matrix : matrices) sum += matrix.rows;
    return sum;
  }
};

// A way to pack a weight. Two rows that read the same packing name the same Layout object.
struct Layout {
  std::string_view name;
  size_t (*bytes)(const WeightSource&);
  // Writes bytes(source) bytes to `out`, in host memory, 256-byte aligned.
  Result<void> (*pack)(const WeightSource&, MutableBytes out);
};

using LayoutId = const Layout*;

// The checkpoint bytes as they are: nothing is packed, PackedWeight::data is null and rows read `source`.
inline constexpr Layout kFileLayout{"file", [](const WeightSource&) { return size_t{0}; },
                                    [](const WeightSource&, MutableBytes) { return Result<void>{}; }};

struct PackedWeight {
  LayoutId layout = nullptr;
  const WeightSource* source = nullptr;
  const std::byte* data = nullptr;  // on the device that runs the row
  size_t bytes = 0;
};

enum class WeightId : int32_t { kNone = -1 };

// Where rows get their weights from; the engine's weight store implements it. Pointers stay valid while plans live.
class WeightProvider {
 public:
  virtual ~WeightProvider() = default;
  virtual const WeightSource& source(WeightId id) const = 0;
  virtual Result<const PackedWeight*> get(WeightId id, LayoutId layout) = 0;
};

}  // namespace assay::ops

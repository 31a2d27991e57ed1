// Binder: where a model gets its weights from, by their names in a checkpoint. checkpoint_binder.h reads them from
// files, dummy.h makes them up.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "base/shape.h"
#include "numeric/weight_format.h"

namespace assay::checkpoint {

// A part of a tensor [experts, rows_per_expert, cols] that fuses the experts of a layer: rows first_row .. first_row +
// rows of one expert.
struct ExpertSlice {
  int64_t experts = 0;
  int64_t rows_per_expert = 0;
  int64_t cols = 0;
  int64_t expert = 0;
  int64_t first_row = 0;
  int64_t rows = 0;
};

class Binder {
 public:
  virtual ~Binder() = default;

  // What the weights come from, for messages: a directory.
  virtual std::string where() const = 0;

  // Prefix of the text model's tensors.
  virtual std::string text_prefix() const = 0;

  virtual bool has(const std::string& name) const = 0;

  // The matrix [rows, cols] stored as base.weight with its siblings.
  virtual Result<numeric::EncodedMatrix> matrix(const std::string& base, int64_t rows, int64_t cols) = 0;

  // A slice of a fused tensor `name` (experts.gate_up_proj [E, 2 Im, H]: gate rows first; experts.down_proj [E, H,
  // Im]); BF16, F16 or F32.
  virtual Result<numeric::EncodedMatrix> expert_slice(const std::string& name, const ExpertSlice& slice) = 0;

  // A small tensor of exactly this shape, all values finite, seen as `rows` rows; BF16, F16 or F32.
  virtual Result<numeric::EncodedMatrix> dense(const std::string& name, const Shape& shape, int64_t rows) = 0;

  // Leaves out all tensors that begin with `prefix` and are still unused.
  virtual void skip(const std::string& prefix, const std::string& reason) = 0;

  // As skip, for tensors the model does not compute with: their scales are checked all the same.
  virtual Result<void> keep(const std::string& prefix, const std::string& reason) = 0;

  // After the last request. Refuses weights that nobody asked for.
  virtual Result<void> finish() = 0;
};

}  // namespace assay::checkpoint

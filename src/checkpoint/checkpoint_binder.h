// The binder of a checkpoint directory: hands its tensors to a model and sees to it that each is used exactly once
// ("exact cover").
//
// The format of a matrix M is decided by the tensors present, never by config lists (real releases contradict theirs):
//   M.weight U8 [N, K/2] + M.weight_scale F8_E4M3 [N, K/16] + M.weight_scale_2 F32 (+ M.input_scale F32)
//       NVFP4 as ModelOpt writes it
//   M.weight BF16, F16 or F32 [N, K]
//       as it is
//   M.weight_packed, M.weight_scale_inv, other F8 or U8 weights
//       known formats without a row yet: kUnsupported
// Checked at bind: shapes, K % 16, block scales without sign or NaN (0x00 is valid: the block is 0), global and input
// scales finite and above 0, vectors finite. A fault in the file is kCheckpoint naming file and tensor; asking for one
// tensor twice is our bug (CHECK).
//
// The checkpoint must outlive the binder and all matrices it gives out. One thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/binder.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/config.h"
#include "numeric/weight_format.h"

namespace assay::checkpoint {

class CheckpointBinder : public Binder {
 public:
  CheckpointBinder(const Checkpoint& checkpoint, QuantisationHints hints);

  std::string where() const override { return checkpoint_.directory(); }
  std::string text_prefix() const override { return checkpoint::text_prefix(checkpoint_); }
  bool has(const std::string& name) const override { return checkpoint_.find(name) != nullptr; }

  // KV-cache scales beside a matrix (base.k_scale, base.v_scale) are checked and not used: a bf16 cache is always
  // valid.
  Result<numeric::EncodedMatrix> matrix(const std::string& base, int64_t rows, int64_t cols) override;

  // A matrix stored under its own name, without a suffix; BF16, F16 or F32.
  Result<numeric::EncodedMatrix> plain_matrix(const std::string& name, int64_t rows, int64_t cols);

  // finish() refuses a fused tensor of which rows were left; taking more rows than there are is a CHECK.
  Result<numeric::EncodedMatrix> expert_slice(const std::string& name, const ExpertSlice& slice) override;

  Result<numeric::EncodedMatrix> dense(const std::string& name, const Shape& shape, int64_t rows) override;

  // Small tensors as floats, of exactly this shape (a conv1d weight is {channels, 1, width}); BF16, F16 or F32.
  Result<std::vector<float>> vector(const std::string& name, const Shape& shape);
  Result<std::vector<float>> vector(const std::string& name, int64_t n) { return vector(name, Shape{n}); }

  // One note with count and bytes each.
  void skip(const std::string& prefix, const std::string& reason) override;
  Result<void> keep(const std::string& prefix, const std::string& reason) override;

  // Refuses tensors nobody asked for, naming up to five. Rotary inv_freq buffers may be left. Notes
  // hint_differences().
  Result<void> finish() override;

  // For people, a line each: what was skipped and kept, and where the config contradicts the tensors.
  const std::vector<std::string>& notes() const { return notes_; }

  // One line on where the config's quantisation lists and the tensors bound so far disagree; empty if they agree.
  std::string hint_differences() const;

 private:
  struct BoundMatrix {
    std::string base;
    bool quantised;
  };

  Result<const TensorInfo*> require(const std::string& name, const std::string& wanted) const;
  void consume(const TensorInfo& tensor, int64_t rows = 1, int64_t of_rows = 1);
  // Tensors of a prefix that are still unused become used.
  std::vector<const TensorInfo*> take_prefix(const std::string& prefix);
  Result<numeric::EncodedMatrix> plain(const TensorInfo& tensor, int64_t rows, int64_t cols);
  Result<numeric::EncodedMatrix> nvfp4(const std::string& base, const TensorInfo& codes, int64_t rows, int64_t cols);
  Result<void> take_cache_scales(const std::string& base);
  // The name of a format that is known but has no row; empty if the tensors look like none.
  std::string unsupported_format(const std::string& base) const;

  const Checkpoint& checkpoint_;
  QuantisationHints hints_;
  std::vector<int64_t> rows_left_;  // per tensor of the checkpoint; -1 where nobody asked yet
  std::vector<BoundMatrix> bound_;
  std::vector<std::string> notes_;
};

}  // namespace assay::checkpoint

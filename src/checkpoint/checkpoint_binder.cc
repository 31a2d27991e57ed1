#include "checkpoint/checkpoint_binder.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "checkpoint/tensor_checks.h"
#include "numeric/bf16.h"
#include "numeric/decode.h"
#include "numeric/f16.h"

namespace assay::checkpoint {
namespace {

using numeric::EncodedMatrix;
using numeric::kNvfp4Block;
using numeric::WeightFormat;

constexpr int64_t kUnused = -1;
constexpr size_t kNamesListed = 5;

std::optional<WeightFormat> plain_format(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return WeightFormat::kF32;
    case DType::kBf16:
      return WeightFormat::kBf16;
    case DType::kF16:
      return WeightFormat::kF16;
    default:
      return std::nullopt;
  }
}

float load_element(const TensorInfo& tensor, int64_t i) {
  const std::byte* data = tensor.bytes.data();
  switch (tensor.dtype) {
    case DType::kBf16:
      return numeric::bf16_to_float(load_unaligned<numeric::Bf16>(data + 2 * i));
    case DType::kF16:
      return numeric::f16_to_float(load_unaligned<numeric::F16>(data + 2 * i));
    default:
      return load_unaligned<float>(data + 4 * i);
  }
}

bool is_rotary_buffer(const std::string& name) { return name.ends_with("rotary_emb.inv_freq"); }

std::string left_out(const char* how, const std::vector<const TensorInfo*>& tensors, const std::string& prefix,
                     const std::string& reason) {
  uint64_t bytes = 0;
  for (const TensorInfo* tensor : tensors) bytes += tensor->bytes.size();
  return fmt::format("{} {} tensors ({} bytes) of {}*: {}", how, tensors.size(), bytes, prefix, reason);
}

// What can be checked of a tensor by its name and dtype alone.
Result<void> check_scales(const TensorInfo& tensor) {
  if (tensor.name.ends_with(".weight_scale") && tensor.dtype == DType::kF8E4M3) return check_block_scales(tensor);
  if (tensor.name.ends_with(".weight_scale_2") || tensor.name.ends_with(".input_scale")) {
    if (Result<float> value = positive_scalar(tensor); !value.ok()) return value.error();
  }
  return {};
}

}  // namespace

CheckpointBinder::CheckpointBinder(const Checkpoint& checkpoint, QuantisationHints hints)
    : checkpoint_(checkpoint), hints_(std::move(hints)), rows_left_(checkpoint.tensors().size(), kUnused) {}

Result<EncodedMatrix> CheckpointBinder::matrix(const std::string& base, int64_t rows, int64_t cols) {
  if (const std::string format = unsupported_format(base); !format.empty()) {
    return Error{.kind = ErrorKind::kUnsupported,
                 .what = "weight format is not supported",
                 .where = checkpoint_.directory() + ": " + base,
                 .got = format,
                 .wanted = "NVFP4 as ModelOpt writes it, BF16, F16 or F32",
                 .hint = ""};
  }
  ASSAY_ASSIGN(const TensorInfo* weight, require(base + ".weight", shape_text({rows, cols})));
  const bool quantised = weight->dtype == DType::kU8;
  ASSAY_ASSIGN(EncodedMatrix matrix, quantised ? nvfp4(base, *weight, rows, cols) : plain(*weight, rows, cols));
  ASSAY_TRY(take_cache_scales(base));
  bound_.push_back({base, quantised});
  return matrix;
}

Result<EncodedMatrix> CheckpointBinder::plain_matrix(const std::string& name, int64_t rows, int64_t cols) {
  ASSAY_ASSIGN(const TensorInfo* tensor, require(name, shape_text({rows, cols})));
  return plain(*tensor, rows, cols);
}

Result<EncodedMatrix> CheckpointBinder::plain(const TensorInfo& tensor, int64_t rows, int64_t cols) {
  const std::optional<WeightFormat> format = plain_format(tensor.dtype);
  if (!format) {
    return tensor_error(tensor, "wrong dtype", std::string(dtype_name(tensor.dtype)), "BF16, F16 or F32");
  }
  ASSAY_TRY(check_shape(tensor, {rows, cols}));
  consume(tensor);
  EncodedMatrix matrix;
  matrix.name = tensor.name;
  matrix.format = *format;
  matrix.rows = rows;
  matrix.cols = cols;
  matrix.data = tensor.bytes;
  return matrix;
}

Result<EncodedMatrix> CheckpointBinder::nvfp4(const std::string& base, const TensorInfo& codes, int64_t rows,
                                              int64_t cols) {
  if (cols % kNvfp4Block != 0) {
    return tensor_error(codes, "inputs are not a multiple of the block", std::to_string(cols),
                        fmt::format("a multiple of {}", kNvfp4Block));
  }
  ASSAY_TRY(check_shape(codes, {rows, cols / 2}));
  const Shape scale_shape = {rows, cols / kNvfp4Block};
  ASSAY_ASSIGN(const TensorInfo* scales, require(base + ".weight_scale", "F8_E4M3 " + shape_text(scale_shape)));
  ASSAY_ASSIGN(const TensorInfo* global, require(base + ".weight_scale_2", "one F32"));
  ASSAY_TRY(check_dtype(*scales, DType::kF8E4M3));
  ASSAY_TRY(check_shape(*scales, scale_shape));
  ASSAY_TRY(check_block_scales(*scales));
  EncodedMatrix matrix;
  matrix.name = codes.name;
  matrix.format = WeightFormat::kNvfp4;
  matrix.rows = rows;
  matrix.cols = cols;
  matrix.data = codes.bytes;
  matrix.scales = scales->bytes;
  ASSAY_ASSIGN(matrix.global_scale, positive_scalar(*global));
  if (const TensorInfo* input = checkpoint_.find(base + ".input_scale")) {
    ASSAY_ASSIGN(matrix.input_scale, positive_scalar(*input));
    consume(*input);
  }
  consume(codes);
  consume(*scales);
  consume(*global);
  return matrix;
}

Result<void> CheckpointBinder::take_cache_scales(const std::string& base) {
  for (const char* suffix : {".k_scale", ".v_scale"}) {
    const TensorInfo* scale = checkpoint_.find(base + suffix);
    if (scale == nullptr) continue;
    ASSAY_ASSIGN([[maybe_unused]] const float value, positive_scalar(*scale));
    consume(*scale);
  }
  return {};
}

std::string CheckpointBinder::unsupported_format(const std::string& base) const {
  const auto dtype_is = [&](const std::string& suffix, DType dtype) {
    const TensorInfo* tensor = checkpoint_.find(base + suffix);
    return tensor != nullptr && tensor->dtype == dtype;
  };
  const bool mx_scale = dtype_is(".weight_scale", DType::kU8);
  if (has(base + ".weight_packed")) {
    return mx_scale ? "MXFP4 (compressed-tensors)" : "NVFP4 as compressed-tensors writes it (weight_packed)";
  }
  if (has(base + ".weight_scale_inv")) return "FP8 in 128 x 128 blocks (weight_scale_inv)";
  if (dtype_is(".weight", DType::kF8E4M3)) {
    const TensorInfo* scale = checkpoint_.find(base + ".weight_scale");
    const bool per_channel = scale != nullptr && scale->shape.size() == 2;
    return per_channel ? "FP8 with a scale per channel" : "FP8 with a scale per tensor";
  }
  if (dtype_is(".weight", DType::kU8) && mx_scale) return "MXFP4";
  return "";
}

Result<EncodedMatrix> CheckpointBinder::expert_slice(const std::string& name, const ExpertSlice& slice) {
  CHECK(slice.expert >= 0 && slice.expert < slice.experts && slice.first_row >= 0 && slice.rows > 0 &&
            slice.first_row + slice.rows <= slice.rows_per_expert,
        "slice of {}: expert {}, rows {} + {}", name, slice.expert, slice.first_row, slice.rows);
  const Shape shape = {slice.experts, slice.rows_per_expert, slice.cols};
  ASSAY_ASSIGN(const TensorInfo* tensor, require(name, shape_text(shape)));
  const std::optional<WeightFormat> format = plain_format(tensor->dtype);
  if (!format) {
    return tensor_error(*tensor, "fused experts in a dtype without a known layout",
                        std::string(dtype_name(tensor->dtype)), "BF16, F16 or F32");
  }
  ASSAY_TRY(check_shape(*tensor, shape));
  consume(*tensor, slice.rows, slice.experts * slice.rows_per_expert);
  const size_t row_bytes = static_cast<size_t>(slice.cols) * dtype_bytes(tensor->dtype);
  const int64_t first = slice.expert * slice.rows_per_expert + slice.first_row;
  EncodedMatrix matrix;
  matrix.name = fmt::format("{}[{}, {}:{}]", name, slice.expert, slice.first_row, slice.first_row + slice.rows);
  matrix.format = *format;
  matrix.rows = slice.rows;
  matrix.cols = slice.cols;
  matrix.data =
      tensor->bytes.subspan(static_cast<size_t>(first) * row_bytes, static_cast<size_t>(slice.rows) * row_bytes);
  return matrix;
}

Result<numeric::EncodedMatrix> CheckpointBinder::dense(const std::string& name, const Shape& shape, int64_t rows) {
  ASSAY_ASSIGN(const TensorInfo* tensor, require(name, shape_text(shape)));
  if (!plain_format(tensor->dtype)) {
    return tensor_error(*tensor, "wrong dtype", std::string(dtype_name(tensor->dtype)), "BF16, F16 or F32");
  }
  ASSAY_TRY(check_shape(*tensor, shape));
  const auto count = static_cast<int64_t>(tensor->bytes.size() / dtype_bytes(tensor->dtype));
  CHECK(rows > 0 && count % rows == 0, "{} values in {} rows", count, rows);
  for (int64_t i = 0; i < count; ++i) {
    const float value = load_element(*tensor, i);
    if (std::isfinite(value)) continue;
    return tensor_error(*tensor, "value is not finite", fmt::format("{} at index {}", value, i), "finite values");
  }
  consume(*tensor);
  numeric::EncodedMatrix matrix;
  matrix.name = tensor->name;
  matrix.format = *plain_format(tensor->dtype);
  matrix.rows = rows;
  matrix.cols = count / rows;
  matrix.data = tensor->bytes;
  return matrix;
}

Result<std::vector<float>> CheckpointBinder::vector(const std::string& name, const Shape& shape) {
  ASSAY_ASSIGN(const numeric::EncodedMatrix matrix, dense(name, shape, 1));
  std::vector<float> values(static_cast<size_t>(matrix.cols));
  numeric::decode_row(matrix, 0, values.data());
  return values;
}

Result<const TensorInfo*> CheckpointBinder::require(const std::string& name, const std::string& wanted) const {
  if (const TensorInfo* tensor = checkpoint_.find(name)) return tensor;
  return Error{.kind = ErrorKind::kCheckpoint,
               .what = "tensor is missing",
               .where = checkpoint_.directory() + ": " + name,
               .got = "nothing",
               .wanted = wanted,
               .hint = ""};
}

void CheckpointBinder::consume(const TensorInfo& tensor, int64_t rows, int64_t of_rows) {
  int64_t& left = rows_left_[static_cast<size_t>(&tensor - checkpoint_.tensors().data())];
  if (left == kUnused) left = of_rows;
  CHECK(left >= rows, "tensor {} is asked for twice", tensor.name);
  left -= rows;
}

std::vector<const TensorInfo*> CheckpointBinder::take_prefix(const std::string& prefix) {
  std::vector<const TensorInfo*> taken;
  for (size_t i = 0; i < rows_left_.size(); ++i) {
    const TensorInfo& tensor = checkpoint_.tensors()[i];
    if (rows_left_[i] != kUnused || !tensor.name.starts_with(prefix)) continue;
    rows_left_[i] = 0;
    taken.push_back(&tensor);
  }
  return taken;
}

void CheckpointBinder::skip(const std::string& prefix, const std::string& reason) {
  const auto taken = take_prefix(prefix);
  if (taken.empty()) return;
  notes_.push_back(left_out("skipped", taken, prefix, reason));
}

Result<void> CheckpointBinder::keep(const std::string& prefix, const std::string& reason) {
  const auto taken = take_prefix(prefix);
  for (const TensorInfo* tensor : taken) ASSAY_TRY(check_scales(*tensor));
  if (!taken.empty()) notes_.push_back(left_out("kept", taken, prefix, reason));
  return {};
}

Result<void> CheckpointBinder::finish() {
  std::string names;
  size_t count = 0;
  for (size_t i = 0; i < rows_left_.size(); ++i) {
    const TensorInfo& tensor = checkpoint_.tensors()[i];
    if (rows_left_[i] == 0 || is_rotary_buffer(tensor.name)) continue;
    if (count++ < kNamesListed) names += (names.empty() ? "" : ", ") + tensor.name;
  }
  if (count > 0) {
    if (count > kNamesListed) names += fmt::format(" and {} more", count - kNamesListed);
    return Error{.kind = ErrorKind::kCheckpoint,
                 .what = fmt::format("{} tensors that the model does not use, or only in part", count),
                 .where = checkpoint_.directory(),
                 .got = names,
                 .wanted = "every tensor used once",
                 .hint = "the config may describe another model than the weights"};
  }
  if (std::string line = hint_differences(); !line.empty()) notes_.push_back(std::move(line));
  return {};
}

std::string CheckpointBinder::hint_differences() const {
  if (hints_.algorithm.empty() && hints_.excluded.empty()) return "";
  const auto excluded = [&](const std::string& base) {
    return std::any_of(hints_.excluded.begin(), hints_.excluded.end(),
                       [&](const std::string& pattern) { return pattern_covers(pattern, base); });
  };
  const auto listed = [&](const std::string& base) {
    return std::any_of(hints_.layer_algorithms.begin(), hints_.layer_algorithms.end(),
                       [&](const auto& entry) { return !entry.second.empty() && pattern_covers(entry.first, base); });
  };
  size_t differences[2] = {};
  std::string example[2];
  for (const BoundMatrix& matrix : bound_) {
    if (matrix.base.ends_with("embed_tokens")) continue;  // no linear layer: exporters' lists never name it
    const bool claimed = hints_.layer_algorithms.empty() ? !excluded(matrix.base) : listed(matrix.base);
    if (claimed == matrix.quantised) continue;
    if (differences[matrix.quantised]++ == 0) example[matrix.quantised] = matrix.base;
  }
  if (differences[0] + differences[1] == 0) return "";
  std::string line = "config lists and tensors differ on quantisation; the tensors decide:";
  if (differences[0] > 0) line += fmt::format(" {} plain though not excluded ({} ..)", differences[0], example[0]);
  if (differences[1] > 0) line += fmt::format(" {} quantised though excluded ({} ..)", differences[1], example[1]);
  return line;
}

}  // namespace assay::checkpoint

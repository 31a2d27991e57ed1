#include "checkpoint/safetensors.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>
#include <optional>

#include "checkpoint/json_file.h"

namespace assay::checkpoint {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "tensor data is read in place");

constexpr size_t kPrefixBytes = 8;
constexpr DType kDtypes[] = {DType::kF32, DType::kBf16, DType::kF16, DType::kF8E4M3, DType::kU8,
                             DType::kI8,  DType::kI32,  DType::kI64, DType::kF64,    DType::kBool};

Error file_error(const std::string& where, std::string what, std::string got, std::string wanted) {
  return {.kind = ErrorKind::kCheckpoint,
          .what = std::move(what),
          .where = where,
          .got = std::move(got),
          .wanted = std::move(wanted),
          .hint = "the file is damaged or not complete; fetch it again"};
}

std::optional<DType> dtype_from_name(std::string_view name) {
  for (DType dtype : kDtypes) {
    if (dtype_name(dtype) == name) return dtype;
  }
  return std::nullopt;
}

// A shape whose element count times `element_bytes` fits 64 bits, and that size.
Result<uint64_t> read_shape(const json& value, const std::string& where, size_t element_bytes, Shape* shape) {
  if (!value.is_array()) return file_error(where, "shape is not a list", value.type_name(), "a list of sizes");
  uint64_t bytes = element_bytes;
  for (const json& size : value) {
    if (!size.is_number_unsigned() || size.get<uint64_t>() > INT64_MAX) {
      return file_error(where, "bad size in shape", size.dump(), "an integer from 0");
    }
    if (__builtin_mul_overflow(bytes, size.get<uint64_t>(), &bytes)) {
      return file_error(where, "shape is too large", value.dump(), "fewer than 2^64 bytes");
    }
    shape->push_back(size.get<int64_t>());
  }
  return bytes;
}

Result<TensorInfo> read_entry(const std::string& name, const json& entry, const std::string& path, ConstBytes data) {
  const std::string where = path + ": " + name;
  const auto field = [&](const char* key) -> const json* {
    const auto it = entry.find(key);
    return it == entry.end() ? nullptr : &*it;
  };
  if (!entry.is_object()) return file_error(where, "entry is not an object", entry.type_name(), "object");
  const json* dtype_field = field("dtype");
  const json* shape_field = field("shape");
  const json* offsets = field("data_offsets");
  if (!dtype_field || !shape_field || !offsets) {
    return file_error(where, "entry is incomplete", entry.dump(), "dtype, shape and data_offsets");
  }
  if (!dtype_field->is_string()) return file_error(where, "dtype is not a string", dtype_field->dump(), "a dtype name");
  const std::optional<DType> dtype = dtype_from_name(dtype_field->get_ref<const std::string&>());
  if (!dtype) {
    std::string known;
    for (DType each : kDtypes) known += (known.empty() ? "" : ", ") + std::string(dtype_name(each));
    return file_error(where, "unknown dtype", dtype_field->get<std::string>(), "one of " + known);
  }
  TensorInfo tensor{.name = name, .dtype = *dtype, .shape = {}, .bytes = {}, .file = path};
  ASSAY_ASSIGN(const uint64_t bytes, read_shape(*shape_field, where, dtype_bytes(*dtype), &tensor.shape));
  if (!offsets->is_array() || offsets->size() != 2 || !(*offsets)[0].is_number_unsigned() ||
      !(*offsets)[1].is_number_unsigned()) {
    return file_error(where, "bad data_offsets", offsets->dump(), "[begin, end]");
  }
  const auto begin = (*offsets)[0].get<uint64_t>();
  const auto end = (*offsets)[1].get<uint64_t>();
  if (begin > end || end > data.size()) {
    return file_error(where, "tensor data lies outside the file", offsets->dump(),
                      fmt::format("within 0 to {}", data.size()));
  }
  if (end - begin != bytes) {
    return file_error(where, "size does not fit shape and dtype", fmt::format("{} bytes", end - begin),
                      fmt::format("{} bytes for {} {}", bytes, dtype_name(*dtype), shape_text(tensor.shape)));
  }
  tensor.bytes = data.subspan(begin, bytes);
  return tensor;
}

Result<void> check_overlaps(const std::vector<TensorInfo>& tensors) {
  std::vector<const TensorInfo*> by_address;
  for (const TensorInfo& tensor : tensors) {
    if (!tensor.bytes.empty()) by_address.push_back(&tensor);
  }
  std::sort(by_address.begin(), by_address.end(),
            [](const TensorInfo* a, const TensorInfo* b) { return a->bytes.data() < b->bytes.data(); });
  for (size_t i = 1; i < by_address.size(); ++i) {
    const TensorInfo& before = *by_address[i - 1];
    if (before.bytes.data() + before.bytes.size() > by_address[i]->bytes.data()) {
      return file_error(before.file + ": " + by_address[i]->name, "tensor data overlaps", before.name,
                        "no byte in two tensors");
    }
  }
  return {};
}

// The header's text and the data behind it.
Result<std::pair<std::string_view, ConstBytes>> split_file(ConstBytes bytes, const std::string& path) {
  if (bytes.size() < kPrefixBytes) {
    return file_error(path, "too short for a safetensors file", fmt::format("{} bytes", bytes.size()),
                      "at least 8 bytes");
  }
  const auto length = load_unaligned<uint64_t>(bytes.data());
  if (length > kMaxSafetensorsHeaderBytes) {
    return file_error(path, "header length is beyond the limit", fmt::format("{} bytes", length),
                      fmt::format("at most {}", kMaxSafetensorsHeaderBytes));
  }
  if (length > bytes.size() - kPrefixBytes) {
    return file_error(path, "the file ends inside its header", fmt::format("{} bytes", bytes.size()),
                      fmt::format("at least {}", length + kPrefixBytes));
  }
  const std::string_view header(reinterpret_cast<const char*>(bytes.data() + kPrefixBytes), length);
  return std::pair{header, bytes.subspan(kPrefixBytes + length)};
}

}  // namespace

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  ASSAY_ASSIGN(MappedFile mapping, MappedFile::open(path));
  ASSAY_ASSIGN(const auto parts, split_file(mapping.bytes(), path));
  ASSAY_ASSIGN(const json header, parse_json_object(parts.first, path + " header"));
  std::vector<TensorInfo> tensors;
  tensors.reserve(header.size());
  for (const auto& [name, entry] : header.items()) {  // json objects iterate in key order
    if (name == "__metadata__") continue;
    ASSAY_ASSIGN(TensorInfo tensor, read_entry(name, entry, path, parts.second));
    tensors.push_back(std::move(tensor));
  }
  ASSAY_TRY(check_overlaps(tensors));
  return SafetensorsFile(std::move(mapping), std::move(tensors));
}

}  // namespace assay::checkpoint

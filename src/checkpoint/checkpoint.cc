#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "checkpoint/json_file.h"

namespace assay::checkpoint {
namespace {

using nlohmann::json;

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

Error checkpoint_error(std::string where, std::string what, std::string got, std::string wanted,
                       std::string hint = "") {
  return {.kind = ErrorKind::kCheckpoint,
          .what = std::move(what),
          .where = std::move(where),
          .got = std::move(got),
          .wanted = std::move(wanted),
          .hint = std::move(hint)};
}

bool exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

// Shard file name -> the tensors the index places there.
Result<std::map<std::string, std::vector<std::string>>> read_index(const std::string& path) {
  ASSAY_ASSIGN(const json index, read_json_object(path));
  const auto weight_map = index.find("weight_map");
  if (weight_map == index.end() || !weight_map->is_object()) {
    return checkpoint_error(path + ": weight_map", "field is missing or not an object",
                            weight_map == index.end() ? "nothing" : weight_map->type_name(), "object");
  }
  std::map<std::string, std::vector<std::string>> shards;
  for (const auto& [name, file] : weight_map->items()) {
    if (!file.is_string()) {
      return checkpoint_error(path + ": weight_map." + name, "not a file name", file.dump(), "string");
    }
    const auto& file_name = file.get_ref<const std::string&>();
    if (file_name.empty() || file_name == "." || file_name == ".." || file_name.find('/') != std::string::npos ||
        file_name.find('\0') != std::string::npos) {
      return checkpoint_error(path + ": weight_map." + name, "not a plain file name", file.dump(),
                              "a file beside the index");
    }
    shards[file_name].push_back(name);
  }
  return shards;
}

// `expected` and the shard's tensors hold the same names; both are in name order.
Result<void> match_names(const std::vector<std::string>& expected, const SafetensorsFile& shard,
                         const std::string& path) {
  auto tensor = shard.tensors().begin();
  const auto end = shard.tensors().end();
  for (const std::string& name : expected) {
    if (tensor != end && tensor->name < name) break;
    if (tensor == end || tensor->name != name) {
      return checkpoint_error(path + ": " + name, "tensor is missing from its shard", "nothing",
                              std::string("the tensor ") + kIndexFile + " names");
    }
    ++tensor;
  }
  if (tensor == end) return {};
  return checkpoint_error(path + ": " + tensor->name, "tensor is not in the index for this shard", tensor->name,
                          std::string("only tensors that ") + kIndexFile + " names");
}

Result<std::vector<SafetensorsFile>> open_shards(const std::string& directory) {
  ASSAY_ASSIGN(const auto shards, read_index(directory + "/" + kIndexFile));
  std::vector<SafetensorsFile> files;
  for (const auto& [file_name, names] : shards) {
    const std::string path = directory + "/" + file_name;
    if (!exists(path)) {
      return checkpoint_error(
          path, "shard is missing", "no such file",
          "the file that holds " + names.front() +
              (names.size() > 1 ? " and " + std::to_string(names.size() - 1) + " more tensors" : ""),
          "fetch the missing shard");
    }
    ASSAY_ASSIGN(SafetensorsFile file, SafetensorsFile::open(path));
    ASSAY_TRY(match_names(names, file, path));
    files.push_back(std::move(file));
  }
  return files;
}

}  // namespace

Result<Checkpoint> Checkpoint::open(const std::string& directory) {
  const std::string single = directory + "/" + kSingleFile;
  std::vector<SafetensorsFile> files;
  if (exists(single)) {
    ASSAY_ASSIGN(SafetensorsFile file, SafetensorsFile::open(single));
    files.push_back(std::move(file));
  } else if (exists(directory + "/" + kIndexFile)) {
    ASSAY_ASSIGN(files, open_shards(directory));
  } else {
    return checkpoint_error(directory, "no weights found", exists(directory) ? "neither file" : "no such directory",
                            std::string(kSingleFile) + " or " + kIndexFile);
  }
  return Checkpoint(directory, std::move(files));
}

Checkpoint::Checkpoint(std::string directory, std::vector<SafetensorsFile> files)
    : directory_(std::move(directory)), files_(std::move(files)) {
  for (SafetensorsFile& file : files_) {
    for (TensorInfo& tensor : file.take_tensors()) tensors_.push_back(std::move(tensor));
  }
  std::sort(tensors_.begin(), tensors_.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  for (const TensorInfo& tensor : tensors_) total_bytes_ += tensor.bytes.size();
}

void Checkpoint::move_to(size_t file, const std::byte* copy) {
  const ConstBytes mapping = files_[file].mapping();
  for (TensorInfo& tensor : tensors_) {
    const auto offset = reinterpret_cast<uintptr_t>(tensor.bytes.data()) - reinterpret_cast<uintptr_t>(mapping.data());
    if (offset <= mapping.size() && tensor.bytes.size() <= mapping.size() - offset) {
      tensor.bytes = {copy + offset, tensor.bytes.size()};
    }
  }
  files_[file].unmap();
}

const TensorInfo* Checkpoint::find(std::string_view name) const {
  const auto it = std::lower_bound(tensors_.begin(), tensors_.end(), name,
                                   [](const TensorInfo& tensor, std::string_view key) { return tensor.name < key; });
  return it != tensors_.end() && it->name == name ? &*it : nullptr;
}

std::string text_prefix(const Checkpoint& checkpoint) {
  constexpr std::string_view kWrapped = "model.language_model.";
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    if (tensor.name.starts_with(kWrapped)) return std::string(kWrapped);
  }
  return "model.";
}

}  // namespace assay::checkpoint

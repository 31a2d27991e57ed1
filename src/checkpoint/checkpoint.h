// The tensors of a checkpoint directory: model.safetensors, or the shards that model.safetensors.index.json names.
// Owner of the mappings. Immutable once open and moved, so any thread may read. Move-only; tensor addresses survive
// that.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoint/safetensors.h"

namespace assay::checkpoint {

class Checkpoint {
 public:
  // model.safetensors wins if both exist. With an index, its weight_map and the shards must hold exactly the same
  // names: a missing shard, a tensor missing from its shard and a tensor the index does not name are refused
  // (kCheckpoint).
  static Result<Checkpoint> open(const std::string& directory);

  Checkpoint(Checkpoint&&) = default;
  Checkpoint& operator=(Checkpoint&&) = default;

  // Null if there is none.
  const TensorInfo* find(std::string_view name) const;

  // In name order.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }

  const std::string& directory() const { return directory_; }
  uint64_t total_bytes() const { return total_bytes_; }

  // Whole files, as mapped.
  size_t files() const { return files_.size(); }
  ConstBytes mapping(size_t file) const { return files_[file].mapping(); }
  // Lets the tensors of a file point into `copy`, which holds the same bytes and outlives this, and unmaps the file.
  void move_to(size_t file, const std::byte* copy);

 private:
  Checkpoint(std::string directory, std::vector<SafetensorsFile> files);

  std::string directory_;
  std::vector<SafetensorsFile> files_;
  std::vector<TensorInfo> tensors_;
  uint64_t total_bytes_ = 0;
};

// Prefix of the text model's tensors: "model.language_model." where such names exist, else "model.".
std::string text_prefix(const Checkpoint& checkpoint);

}  // namespace assay::checkpoint

#include "engine/checkpoint_copy.h"

#include <cstring>
#include <utility>

namespace assay::engine {

Result<std::vector<device::Buffer>> copy_into_memory(checkpoint::Checkpoint& files, device::Device& device,
                                                     double memory_utilization) {
  std::vector<device::Buffer> copies;
  const device::DeviceCaps& caps = device.caps();
  const double most = static_cast<double>(caps.memory_bytes) * memory_utilization / 2;
  if (caps.backend != device::Backend::kCpu || static_cast<double>(files.total_bytes()) > most) return copies;
  for (size_t file = 0; file < files.files(); ++file) {
    const ConstBytes mapping = files.mapping(file);
    ASSAY_ASSIGN(device::Buffer copy, device.allocate(mapping.size()));
    std::memcpy(copy.data(), mapping.data(), mapping.size());
    files.move_to(file, static_cast<const std::byte*>(copy.data()));
    copies.push_back(std::move(copy));
  }
  return copies;
}

int64_t total_bytes(const std::vector<device::Buffer>& copies) {
  int64_t bytes = 0;
  for (const device::Buffer& copy : copies) bytes += static_cast<int64_t>(copy.bytes());
  return bytes;
}

}  // namespace assay::engine

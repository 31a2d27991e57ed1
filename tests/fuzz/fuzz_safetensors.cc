// SafetensorsFile::open on any bytes; of a file that opens, every byte of every tensor must be readable.
#include "checkpoint/safetensors.h"
#include "fuzz/fuzz_util.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const assay::fuzz::MemoryFile file(data, size);
  const auto opened = assay::checkpoint::SafetensorsFile::open(file.path());
  if (!assay::fuzz::accepted(opened)) return 0;
  uint64_t sum = 0;
  for (const auto& tensor : opened->tensors()) {
    if (tensor.bytes.size() > size) std::abort();
    for (const std::byte byte : tensor.bytes) sum += static_cast<uint64_t>(byte);
  }
  static volatile uint64_t sink;
  sink = sum;
  return 0;
}

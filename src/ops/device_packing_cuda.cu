// Packing on a GPU: the file's bytes go to a blob as kCudaFileLayout describes it, a thread makes 16 bytes of a tile
// from it. Bytes: the file's over the bus; read and written once on the GPU, which is bound by the bus.
#include "ops/device_packing_cuda.h"

#include "backend/cuda/launch.h"
#include "ops/file_layout_cuda.h"
#include "ops/tile_layout_cuda.h"

namespace assay::ops {
namespace {

using numeric::WeightFormat;

constexpr int kThreads = 256;
constexpr uint32_t kNone = 0xFFFFFFFFu;
constexpr int kUnit = 16;  // bytes

enum class Rows : uint8_t {
  kStacked,  // row i of tile t is row 16 t + i of all matrices one below the other
  kGateUp,   // of expert e: row 8 t + i % 8 of matrix 3 e + i / 8
  kDown,     // of expert e: row 16 t + i of matrix 3 e + 2
};

// Tiles of one matrix, or of one of each expert (blockIdx.y).
struct Tiles {
  const std::byte* blob = nullptr;
  int32_t matrices = 0;
  Rows rows = Rows::kStacked;
  WeightFormat format = WeightFormat::kBf16;
  int64_t k = 0;
  int64_t count = 0;
  std::byte* out = nullptr;
  int64_t expert_bytes = 0;    // from one expert's tiles to the next one's
  uint32_t* broken = nullptr;  // the lowest matrix with a block scale that is not a number
};

struct SourceRow {
  const std::byte* data = nullptr;  // null: a row of zeros
  const std::byte* scales = nullptr;
  uint32_t matrix = 0;
};

__device__ SourceRow row_of(const Tiles& tiles, int64_t tile, int i) {
  const auto* table = reinterpret_cast<const FileMatrix*>(tiles.blob);
  const auto expert = static_cast<int32_t>(blockIdx.y);
  int32_t matrix = 0;
  int64_t row = tile * kTileRows + i;
  if (tiles.rows == Rows::kStacked) {
    while (matrix < tiles.matrices && row >= table[matrix].rows) row -= table[matrix++].rows;
    if (matrix == tiles.matrices) return {};
  } else if (tiles.rows == Rows::kGateUp) {
    matrix = 3 * expert + i / 8;
    row = tile * 8 + i % 8;
  } else {
    matrix = 3 * expert + 2;
  }
  const int64_t row_bytes = tiles.format == WeightFormat::kNvfp4 ? tiles.k / 2 : tiles.k * 2;
  return {tiles.blob + table[matrix].data + row * row_bytes, tiles.blob + table[matrix].scales + row * (tiles.k / 16),
          static_cast<uint32_t>(matrix)};
}

// Eight inputs from column on.
__device__ uint4 bf16_unit(const SourceRow& row, int64_t column, int64_t k) {
  uint16_t values[8] = {};
  if (row.data != nullptr) {
    const auto* from = reinterpret_cast<const uint16_t*>(row.data) + column;
    if (k % 8 == 0 && column < k) return *reinterpret_cast<const uint4*>(from);
    for (int i = 0; i < 8; ++i) values[i] = column + i < k ? from[i] : 0;
  }
  const auto pair = [&](int i) { return values[i] | uint32_t{values[i + 1]} << 16; };
  return {pair(0), pair(2), pair(4), pair(6)};
}

__device__ uint32_t code_word(const SourceRow& row, int64_t column, int64_t k) {
  if (row.data == nullptr || column >= k) return 0;
  const auto scale = static_cast<uint32_t>(row.scales[column / 16]);
  if ((scale & 0x7F) == 0) return 0;
  const uint32_t codes = *reinterpret_cast<const uint32_t*>(row.data + column / 2) ^ (scale >> 7) * 0x88888888u;
  uint32_t word = 0;
#pragma unroll
  for (int input = 0; input < 8; ++input) {
#pragma unroll
    for (int bit = 0; bit < 4; ++bit) {
      word |= (codes >> (4 * input + bit) & 1u) << tile_code_bit(input / 2, input % 2, bit);
    }
  }
  return word;
}

__device__ uint32_t scale_byte(const Tiles& tiles, const SourceRow& row, int64_t column) {
  if (row.data == nullptr || column >= tiles.k) return 0;
  const auto scale = static_cast<uint32_t>(row.scales[column / 16]) & 0x7F;
  if (scale == 0x7F) atomicMin(tiles.broken, row.matrix);
  return scale == 0 || scale == 0x7F ? 0 : tile_scale(static_cast<uint8_t>(scale));
}

__global__ void __launch_bounds__(kThreads) pack_tiles(Tiles tiles) {
  const int units = static_cast<int>(tile_chunk_bytes(tiles.format)) / kUnit;
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x, chunks = tile_chunks(tiles.k);
  if (index >= tiles.count * chunks * units) return;
  const int unit = static_cast<int>(index % units), lane = unit % 32, g = lane / 4, t = lane % 4;
  const int64_t tile = index / units / chunks, first = index / units % chunks * kTileChunk;
  uint4 made;
  if (tiles.format == WeightFormat::kBf16) {
    const int half = unit / 32 % 2, j = unit / 64;
    made = bf16_unit(row_of(tiles, tile, g + 8 * half), first + 32 * j + 8 * t, tiles.k);
  } else if (unit < 64) {
    const SourceRow row = row_of(tiles, tile, g + 8 * (unit / 32));
    const auto word = [&](int j) { return code_word(row, first + 32 * j + 8 * t, tiles.k); };
    made = {word(0), word(1), word(2), word(3)};
  } else {  // scales [t / 2][row half][j] of rows g and g + 8
    const SourceRow rows[2] = {row_of(tiles, tile, unit - 64), row_of(tiles, tile, unit - 64 + 8)};
    const auto word = [&](int i) {
      uint32_t bytes = 0;
      for (int j = 0; j < 4; ++j) bytes |= scale_byte(tiles, rows[i % 2], first + 32 * j + 16 * (i / 2)) << 8 * j;
      return bytes;
    };
    made = {word(0), word(1), word(2), word(3)};
  }
  reinterpret_cast<uint4*>(tiles.out + blockIdx.y * tiles.expert_bytes)[index] = made;
}

void upload_file(device::Device& device, const WeightSource& source, std::byte* blob) {
  const std::vector<FileMatrix> table = file_matrices(source);
  device.upload(blob, table.data(), table.size() * sizeof(FileMatrix));
  for (size_t i = 0; i < table.size(); ++i) {
    const numeric::EncodedMatrix& matrix = source.matrices[i];
    device.upload(blob + table[i].data, matrix.data.data(), matrix.data.size());
    if (!matrix.scales.empty()) device.upload(blob + table[i].scales, matrix.scales.data(), matrix.scales.size());
  }
}

// A weight's file on the device, and what its packing finds wrong.
class Packing {
 public:
  static Result<Packing> start(device::Device& device, const WeightSource& source) {
    const size_t blob_bytes = device::Arena::round_up(kCudaFileLayout.bytes(source));
    ASSAY_ASSIGN(device::Buffer memory, device.allocate(blob_bytes + sizeof(uint32_t)));
    Packing packing(device, source, std::move(memory));
    upload_file(device, source, packing.blob());
    device.upload(packing.blob() + blob_bytes, &kNone, sizeof(kNone));
    packing.broken_ = reinterpret_cast<uint32_t*>(packing.blob() + blob_bytes);
    return Result<Packing>(std::move(packing));
  }

  std::byte* blob() const { return static_cast<std::byte*>(memory_.data()); }

  void pack(Rows rows, int64_t k, int64_t count, std::byte* out, int64_t experts = 1, int64_t expert_bytes = 0) const {
    const Tiles tiles{blob(), static_cast<int32_t>(source_.matrices.size()),
                      rows,   source_.matrices[0].format,
                      k,      count,
                      out,    expert_bytes,
                      broken_};
    const unsigned blocks = cuda::blocks_for(count * tile_bytes(tiles.format, k) / kUnit, kThreads);
    cuda::launch("pack tiles", pack_tiles, dim3(blocks, static_cast<unsigned>(experts)), kThreads, 0, device_.stream(),
                 tiles);
  }

  Result<void> finish() const {
    uint32_t broken = kNone;
    device_.download(&broken, broken_, sizeof(broken));  // waits for the kernels
    if (broken == kNone) return {};
    return scale_is_not_a_number(source_.matrices[broken]);
  }

 private:
  Packing(device::Device& device, const WeightSource& source, device::Buffer memory)
      : device_(device), source_(source), memory_(std::move(memory)) {}

  device::Device& device_;
  const WeightSource& source_;
  device::Buffer memory_;
  uint32_t* broken_ = nullptr;
};

void pack_linear(device::Device& device, const WeightSource& source, const Packing& packing, std::byte* out) {
  const numeric::EncodedMatrix& first = source.matrices[0];
  packing.pack(Rows::kStacked, first.cols, (source.rows() + kTileRows - 1) / kTileRows, out);
  const std::vector<float> factors = tile_factors(source);
  device.upload(out + tile_factor_offset(first.format, source.rows(), first.cols), factors.data(),
                factors.size() * sizeof(float));
}

}  // namespace

Result<void> pack_file_on_device(device::Device& device, const WeightSource& source, std::byte* out) {
  device.fill(out, 0, kCudaFileLayout.bytes(source));
  upload_file(device, source, out);
  return {};
}

Result<void> pack_tiles_on_device(device::Device& device, const WeightSource& source, std::byte* out) {
  ASSAY_ASSIGN(const Packing packing, Packing::start(device, source));
  device.fill(out, 0, kCudaTileLayout.bytes(source));
  pack_linear(device, source, packing, out);
  return packing.finish();
}

Result<void> pack_tiles_and_rows_on_device(device::Device& device, const WeightSource& source, std::byte* out) {
  ASSAY_ASSIGN(const Packing packing, Packing::start(device, source));
  device.fill(out, 0, kCudaTileAndRowsLayout.bytes(source));
  pack_linear(device, source, packing, out);
  const numeric::EncodedMatrix& first = source.matrices[0];
  std::byte* rows = out + tile_rows_offset(first.format, source.rows(), first.cols);
  const std::vector<FileMatrix> table = file_matrices(source);
  for (size_t i = 0; i < table.size(); ++i) {
    const size_t bytes = source.matrices[i].data.size();
    cuda::check(cudaMemcpyAsync(rows, packing.blob() + table[i].data, bytes, cudaMemcpyDeviceToDevice,
                                cuda::raw(device.stream())),
                "packing rows");
    rows += bytes;
  }
  return packing.finish();
}

Result<void> pack_expert_tiles_on_device(device::Device& device, const WeightSource& source, std::byte* out) {
  ASSAY_ASSIGN(const Packing packing, Packing::start(device, source));
  const numeric::EncodedMatrix& gate = source.matrices[0];
  const auto experts = static_cast<int64_t>(source.matrices.size() / 3);
  const int64_t hidden = gate.cols, intermediate = gate.rows;
  const ExpertTiles sizes(gate.format, experts, hidden, intermediate);
  const int64_t expert_bytes = sizes.gate_up_bytes + sizes.down_bytes;
  packing.pack(Rows::kGateUp, hidden, intermediate / 8, out, experts, expert_bytes);
  packing.pack(Rows::kDown, intermediate, hidden / kTileRows, out + sizes.gate_up_bytes, experts, expert_bytes);
  const std::vector<float> factors = expert_factors(source);
  device.upload(out + sizes.factors, factors.data(), factors.size() * sizeof(float));
  return packing.finish();
}

}  // namespace assay::ops

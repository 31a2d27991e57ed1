// Layouts that the GPU packs (ops/device_packing.h) against the host's packing of the same weights, byte for byte.
#include "gpu/gpu_harness.h"
#include "ops/device_packing.h"
#include "ops/file_layout_cuda.h"
#include "ops/tile_layout_cuda.h"

namespace assay::gpu_test {
namespace {

using numeric::WeightFormat;
using testing::OwnedMatrix;
using testing::random_matrix;

// "": the same bytes, or the same error.
std::string compare(Suite& suite, const WeightSource& source, const Layout& layout) {
  device::Device& device = suite.gpu().device();
  const PackOnDevice pack = device_packing(&layout, device::Backend::kCuda);
  if (pack == nullptr) return "the GPU does not pack it";
  const size_t bytes = layout.bytes(source);
  std::vector<std::byte> host(bytes), got(bytes);
  device::Buffer memory = std::move(device.allocate(bytes)).value();
  device.fill(memory.data(), 0x5A, bytes);
  const auto packed = layout.pack(source, host);
  const auto packed_there = pack(device, source, static_cast<std::byte*>(memory.data()));
  if (packed.ok() != packed_there.ok()) return "one packing fails";
  if (!packed.ok()) {
    return packed.error().message() == packed_there.error().message() ? "" : packed_there.error().message();
  }
  device.download(got.data(), memory.data(), bytes);
  const auto differs = std::mismatch(host.begin(), host.end(), got.begin()).first - host.begin();
  return host == got ? "" : fmt::format("byte {} of {}", differs, bytes);
}

void check(Suite& suite, const std::string& name, std::vector<OwnedMatrix> matrices, const Layout& layout) {
  const WeightId id = suite.cpu().weights().add(std::move(matrices));
  Outcome outcome{"packing", std::string(layout.name), name};
  outcome.failure = compare(suite, suite.cpu().weights().source(id), layout);
  suite.add(std::move(outcome));
}

// Negative, zero and subnormal block scales among random ones.
OwnedMatrix varied_matrix(Random& random, WeightFormat format, int64_t rows, int64_t cols) {
  OwnedMatrix matrix = random_matrix(random, format, rows, cols);
  for (size_t i = 0; i < matrix.matrix.scales.size(); i += 3) {
    matrix.scale_bytes()[i] =
        i % 2 == 0 ? static_cast<std::byte>(i / 6 % 8) : matrix.scale_bytes()[i] | std::byte{0x80};
  }
  return matrix;
}

void check_linear_layouts(Suite& suite, Random& random) {
  struct Shape {
    std::vector<int64_t> rows;
    int64_t k;
  };
  for (const Shape& shape : {Shape{{16}, 128}, Shape{{48, 16, 7}, 272}, Shape{{1}, 16}, Shape{{129, 300}, 2048}}) {
    for (const WeightFormat format : {WeightFormat::kBf16, WeightFormat::kNvfp4}) {
      for (const Layout* layout : {&kCudaFileLayout, &kCudaTileLayout, &kCudaTileAndRowsLayout}) {
        if (layout == &kCudaTileAndRowsLayout && format != WeightFormat::kBf16) continue;
        std::vector<OwnedMatrix> matrices;
        for (const int64_t rows : shape.rows) matrices.push_back(varied_matrix(random, format, rows, shape.k));
        check(suite, fmt::format("{} {} shards, k={}", weight_format_name(format), shape.rows.size(), shape.k),
              std::move(matrices), *layout);
      }
    }
  }
}

std::vector<OwnedMatrix> experts(Random& random, WeightFormat format, int64_t hidden, int64_t intermediate) {
  std::vector<OwnedMatrix> matrices;
  for (int i = 0; i < 15; ++i) {
    const bool down = i % 3 == 2;
    matrices.push_back(varied_matrix(random, format, down ? hidden : intermediate, down ? intermediate : hidden));
  }
  return matrices;
}

}  // namespace

void check_packing(Suite& suite) {
  if (!suite.wants("packing")) return;
  Random random(16);
  check_linear_layouts(suite, random);
  for (const WeightFormat format : {WeightFormat::kBf16, WeightFormat::kNvfp4}) {
    for (const auto& [hidden, intermediate] : {std::pair{256, 64}, {272, 48}}) {
      check(suite, fmt::format("{} experts {}x{}", weight_format_name(format), hidden, intermediate),
            experts(random, format, hidden, intermediate), kCudaExpertTileLayout);
    }
  }
  std::vector<OwnedMatrix> broken = experts(random, WeightFormat::kNvfp4, 256, 64);
  broken[7].scale_bytes()[11] = std::byte{0x7F};
  broken[7].matrix.name = "broken";
  check(suite, "a scale that is not a number", std::move(broken), kCudaExpertTileLayout);
}

}  // namespace assay::gpu_test

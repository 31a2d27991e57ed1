#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "backend/cpu/cpu_device.h"
#include "ops/cpu_vector.h"

namespace assay::ops {
namespace {

// Every quadrant, and up to a million radians.
TEST(VectorKernels, AnglesAreRoundedSinesAndCosines) {
  const auto device = cpu::make_cpu_device(1);
  std::vector<float> frequency;
  for (int i = 0; i < 37; ++i) frequency.push_back(std::pow(10.0f, -static_cast<float>(i) / 6.0f));
  const auto count = static_cast<int64_t>(frequency.size());
  for (const CpuVector* set : {&kCpuVectorPortable, &kCpuVectorAvx2, &kCpuVectorAvx512}) {
    if (!set->has(device->caps().cpu)) continue;
    for (int32_t position = 0; position < 1'000'000; position = position * 9 / 8 + 1) {
      std::vector<float> cosine(frequency.size()), sine(frequency.size()), cosine_wanted = cosine, sine_wanted = sine;
      set->kernels.angles(frequency.data(), static_cast<float>(position), cosine.data(), sine.data(), count);
      kVectorKernelsPortable.angles(frequency.data(), static_cast<float>(position), cosine_wanted.data(),
                                    sine_wanted.data(), count);
      ASSERT_EQ(cosine, cosine_wanted) << set->row;
      ASSERT_EQ(sine, sine_wanted) << set->row;
      for (size_t i = 0; i < frequency.size(); ++i) {
        const double angle = static_cast<float>(position) * frequency[i];
        ASSERT_NEAR(cosine[i], std::cos(angle), 0.51 * 0x1p-24) << position << " " << i;
        ASSERT_NEAR(sine[i], std::sin(angle), 0.51 * 0x1p-24) << position << " " << i;
      }
    }
  }
}

}  // namespace
}  // namespace assay::ops

#include "base/hash.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace assay {
namespace {

TEST(Hash64, SeesEverySingleBit) {
  for (const size_t size : {1u, 7u, 8u, 63u, 64u, 65u, 200u}) {
    std::vector<std::byte> bytes(size, std::byte{0x5A});
    std::set<uint64_t> seen{hash64(bytes)};
    for (size_t bit = 0; bit < 8 * size; ++bit) {
      bytes[bit / 8] ^= std::byte{1} << (bit % 8);
      EXPECT_TRUE(seen.insert(hash64(bytes)).second) << size << " bytes, bit " << bit;
      bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    }
  }
}

TEST(Hash64, DependsOnOrderLengthAndSeed) {
  std::vector<std::byte> bytes(128);
  bytes[3] = std::byte{1};
  const uint64_t first = hash64(bytes);
  std::swap(bytes[3], bytes[67]);
  EXPECT_NE(hash64(bytes), first);
  EXPECT_NE(hash64(ConstBytes(bytes).first(127)), hash64(ConstBytes(bytes).first(126)));
  EXPECT_NE(hash64("a", 1), hash64("a", 2));
  EXPECT_EQ(hash64("a", 1), hash64("a", 1));
}

}  // namespace
}  // namespace assay

// hash64: a fast hash of bytes, to notice changes: not against an adversary.
//
// Eight 64-bit lanes, each fed one word of every 64-byte stripe: lane = (lane ^ word) * odd, then its upper half into
// its lower one: a product alone leaves a flipped top bit where it was, for one bit of the next stripe to undo. A
// lane's step is a bijection of the lane for a given word and of the word for a given lane, so two inputs of equal
// length that differ in one word never agree in that lane. The end folds lanes and length through 64 x 64 -> 128-bit
// multiplications. The lanes are independent, so the loop runs at memory speed.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/bytes.h"

namespace assay {

constexpr uint64_t hash_fold(uint64_t a, uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a ^ 0x9E3779B97F4A7C15ull) * (b ^ 0xD1B54A32D192ED03ull);
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

inline uint64_t hash64(ConstBytes bytes, uint64_t seed = 0) {
  constexpr size_t kLanes = 8, kStripe = kLanes * sizeof(uint64_t);
  constexpr uint64_t kOdd = 0x9FB21C651E98DF25ull;
  uint64_t lanes[kLanes];
  for (size_t i = 0; i < kLanes; ++i) lanes[i] = seed + (i + 1) * 0xA24BAED4963EE407ull;
  const auto stripe = [&](const std::byte* at) {
    for (size_t i = 0; i < kLanes; ++i) {
      const uint64_t product = (lanes[i] ^ load_unaligned<uint64_t>(at + i * sizeof(uint64_t))) * kOdd;
      lanes[i] = product ^ product >> 32;
    }
  };
  size_t done = 0;
  for (; done + kStripe <= bytes.size(); done += kStripe) stripe(bytes.data() + done);
  if (done < bytes.size()) {
    std::byte last[kStripe] = {};
    std::memcpy(last, bytes.data() + done, bytes.size() - done);
    stripe(last);
  }
  uint64_t hash = hash_fold(seed, bytes.size());
  for (uint64_t lane : lanes) hash = hash_fold(hash, lane);
  return hash;
}

inline uint64_t hash64(std::string_view text, uint64_t seed = 0) {
  return hash64(std::as_bytes(std::span(text.data(), text.size())), seed);
}

}  // namespace assay

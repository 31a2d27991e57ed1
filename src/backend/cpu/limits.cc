#include "backend/cpu/limits.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "backend/cpu/lanes.h"
#include "backend/cpu/limits_kernel.h"
#include "base/huge_pages.h"

namespace assay::cpu {
namespace {

constexpr int kRounds = 6;
constexpr size_t kLine = 4096;
constexpr size_t kWindows = 16;

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// `amount` of work per best round of body().
template <class Body>
double best_rate(double amount, const Body& body) {
  body();
  double best = 0;
  for (int round = 0; round < 10 * kRounds; ++round) {
    const double begin = seconds();
    body();
    best = std::max(best, amount / (seconds() - begin));
  }
  return best;
}

// All threads at once: best sum of FLOPs over time.
double flops(ThreadPool& pool, double (*loop)(int64_t)) {
  constexpr int64_t kSteps = 100'000;  // half a millisecond
  const double amount = loop(kSteps) * 4 * pool.threads();
  return best_rate(amount, [&] {
    pool.parallel_for(4 * pool.threads(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) loop(kSteps);
    });
  });
}

using ReadFunction = uint64_t (*)(const std::byte*, size_t);

ReadFunction read_function(const device::CpuFeatures& cpu) {
  return cpu.avx512 ? read_avx512 : cpu.avx2 ? read_avx2 : read_portable;
}

// body(window) for kWindows windows of a buffer, over and over, each timed by itself: a window is short enough to find
// a moment without neighbours, and cold again when its turn comes. amount: of one window.
template <class Body>
double best_window(double amount, const Body& body) {
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    for (size_t window = 0; window < kWindows; ++window) {
      const double begin = seconds();
      body(window);
      best = std::max(best, amount / (seconds() - begin));
    }
  }
  return best;
}

// One window of `bytes`, cut over the threads; `repeats` times.
void read_window(ThreadPool& pool, ReadFunction read, const std::byte* data, size_t bytes, int64_t repeats) {
  const int64_t pieces = 4 * pool.threads();
  const size_t piece = bytes / static_cast<size_t>(pieces) / kLine * kLine;
  std::atomic<uint64_t> sink{0};
  pool.parallel_for(pieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t r = 0; r < repeats; ++r) {
        sink.fetch_xor(read(data + static_cast<size_t>(i) * piece, piece), std::memory_order_relaxed);
      }
    }
  });
}

void copy_window(ThreadPool& pool, const std::byte* from, std::byte* to, size_t bytes) {
  const int64_t pieces = 4 * pool.threads();
  const size_t piece = bytes / static_cast<size_t>(pieces) / kLine * kLine;
  pool.parallel_for(pieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::memcpy(to + static_cast<size_t>(i) * piece, from + static_cast<size_t>(i) * piece, piece);
    }
  });
}

// What the pieces of a window of `bytes` add up to.
double window_bytes(const ThreadPool& pool, size_t bytes) {
  const auto pieces = static_cast<size_t>(4 * pool.threads());
  return static_cast<double>(bytes / pieces / kLine * kLine * pieces);
}

}  // namespace

double Limits::best_flops() const { return std::max({fma_portable, fma_avx2, fma_avx512, dot_avx512_bf16}); }

double multiply_add_portable(int64_t rounds) {
  constexpr int kChains = 12;
  F4 sum[kChains];
  for (int c = 0; c < kChains; ++c) sum[c] = broadcast(static_cast<float>(c));
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) sum[c] = sum[c] * broadcast(0.5f) + broadcast(1.0f);
  }
  for (const F4& value : sum) {
    float lanes[4];
    store4(lanes, value);
    asm volatile("" : : "r"(lanes) : "memory");
  }
  return 2.0 * 4 * kChains * static_cast<double>(rounds);
}

uint64_t read_portable(const std::byte* data, size_t bytes) {
  uint64_t sum[8] = {};
  for (size_t at = 0; at + 64 <= bytes; at += 64) {
    uint64_t words[8];
    std::memcpy(words, data + at, sizeof(words));
    for (int i = 0; i < 8; ++i) sum[i] ^= words[i];
  }
  return sum[0] ^ sum[1] ^ sum[2] ^ sum[3] ^ sum[4] ^ sum[5] ^ sum[6] ^ sum[7];
}

Limits measure_limits(ThreadPool& pool, const device::DeviceCaps& caps) {
  constexpr size_t kLeastCache = size_t{8} << 20;  // where the system does not say
  Limits limits;
  limits.threads = pool.threads();
  limits.cache_bytes = std::max(caps.cache_bytes, kLeastCache);
  const size_t bytes = 5 * limits.cache_bytes / kLine * kLine;
  std::unique_ptr<std::byte, decltype(&std::free)> memory(static_cast<std::byte*>(allocate_huge(bytes)), &std::free);
  CHECK(memory != nullptr, "{} bytes", bytes);
  std::memset(memory.get(), 1, bytes);  // the first touch of a page is another matter
  const ReadFunction read = read_function(caps.cpu);
  const size_t window = bytes / kWindows / kLine * kLine;
  std::byte* data = memory.get();
  limits.dram_read =
      best_window(window_bytes(pool, window), [&](size_t w) { read_window(pool, read, data + w * window, window, 1); });
  limits.dram_copy = best_window(window_bytes(pool, window / 2) * 2, [&](size_t w) {
    copy_window(pool, data + w * window, data + w * window + window / 2 / kLine * kLine, window / 2);
  });
  const size_t cached = limits.cache_bytes / 2;
  limits.l3_read = best_rate(window_bytes(pool, cached), [&] { read_window(pool, read, data, cached, 1); });
  limits.fma_portable = flops(pool, multiply_add_portable);
  if (caps.cpu.avx2) limits.fma_avx2 = flops(pool, multiply_add_avx2);
  if (caps.cpu.avx512) limits.fma_avx512 = flops(pool, multiply_add_avx512);
  if (caps.cpu.avx512_bf16) limits.dot_avx512_bf16 = flops(pool, dot_pairs_avx512_bf16);
  return limits;
}

}  // namespace assay::cpu

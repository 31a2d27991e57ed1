#include "backend/cpu/limits.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "backend/cpu/lanes.h"
#include "backend/cpu/limits_kernel.h"
#include "base/huge_pages.h"

namespace assay::cpu {
namespace {

constexpr int kPasses = 10;
constexpr size_t kLine = 4096;
constexpr size_t kWindows = 32;  // of a DRAM pass

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// One pass: part(0), part(1), ..., each of them `amount` of work.
template <class Part>
Rate one_pass(size_t parts, double amount, const Part& part) {
  Rate rate;
  const double start = seconds();
  double begin = start;
  for (size_t p = 0; p < parts; ++p) {
    part(p);
    const double end = seconds();
    rate.burst = std::max(rate.burst, amount / (end - begin));
    begin = end;
  }
  rate.pass = amount * static_cast<double>(parts) / (begin - start);
  return rate;
}

template <class Pass>
Rate best_of_passes(const Pass& pass) {
  pass();  // warms up
  Rate best;
  for (int i = 0; i < kPasses; ++i) {
    const Rate rate = pass();
    best = {std::max(best.pass, rate.pass), std::max(best.burst, rate.burst)};
  }
  return best;
}

using ReadFunction = uint64_t (*)(const std::byte*, size_t);

ReadFunction read_function(const device::CpuFeatures& cpu) {
  return cpu.avx512 ? read_avx512 : cpu.avx2 ? read_avx2 : read_portable;
}

// A window of a buffer, cut over the threads.
struct Window {
  int64_t pieces;
  size_t piece;  // bytes

  Window(const ThreadPool& pool, size_t bytes)
      : pieces(4 * pool.threads()), piece(bytes / static_cast<size_t>(pieces) / kLine * kLine) {}
  size_t bytes() const { return piece * static_cast<size_t>(pieces); }
};

void read_window(ThreadPool& pool, ReadFunction read, const std::byte* data, const Window& window) {
  std::atomic<uint64_t> sink{0};
  pool.parallel_for(window.pieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      sink.fetch_xor(read(data + static_cast<size_t>(i) * window.piece, window.piece), std::memory_order_relaxed);
    }
  });
}

void copy_window(ThreadPool& pool, const std::byte* from, std::byte* to, const Window& window) {
  pool.parallel_for(window.pieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const size_t at = static_cast<size_t>(i) * window.piece;
      std::memcpy(to + at, from + at, window.piece);
    }
  });
}

size_t buffer_bytes(size_t cache_bytes) { return 5 * cache_bytes / (kWindows * kLine) * (kWindows * kLine); }

}  // namespace

double Limits::best_flops() const {
  return std::max({fma_portable.pass, fma_avx2.pass, fma_avx512.pass, dot_avx512_bf16.pass});
}

double multiply_add_portable(int64_t rounds) {
  constexpr int kChains = 12;
  F4 sum[kChains];
  for (int c = 0; c < kChains; ++c) sum[c] = broadcast(static_cast<float>(c));
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (F4& chain : sum) chain = chain * broadcast(0.5f) + broadcast(1.0f);
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

LimitProbe::LimitProbe(ThreadPool& pool, const device::DeviceCaps& caps)
    : pool_(pool),
      cpu_(caps.cpu),
      cache_bytes_(std::max(caps.cache_bytes, size_t{8} << 20)),  // where the system does not say
      memory_(static_cast<std::byte*>(allocate_huge(buffer_bytes(cache_bytes_))), &std::free),
      fastest_(multiply_add_portable) {
  const size_t bytes = buffer_bytes(cache_bytes_);
  CHECK(memory_ != nullptr, "{} bytes", bytes);
  std::memset(memory_.get(), 1, bytes);  // the first touch of a page is another matter
}

Rate LimitProbe::read() {
  const size_t stride = buffer_bytes(cache_bytes_) / kWindows;
  const Window window(pool_, stride);
  const ReadFunction read = read_function(cpu_);
  return one_pass(kWindows, static_cast<double>(window.bytes()),
                  [&](size_t w) { read_window(pool_, read, memory_.get() + w * stride, window); });
}

Rate LimitProbe::copy() {
  const size_t half = buffer_bytes(cache_bytes_) / 2, stride = half / kWindows;
  const Window window(pool_, stride);
  return one_pass(kWindows, 2 * static_cast<double>(window.bytes()), [&](size_t w) {
    std::byte* from = memory_.get() + w * stride;
    copy_window(pool_, from, from + half, window);
  });
}

Rate LimitProbe::cached_read() {
  const Window window(pool_, cache_bytes_ / 2);
  const ReadFunction read = read_function(cpu_);
  return one_pass(kWindows, static_cast<double>(window.bytes()),
                  [&](size_t) { read_window(pool_, read, memory_.get(), window); });
}

Rate LimitProbe::flops(FlopLoop loop) {
  constexpr int64_t kSteps = 100'000, kBursts = 25;  // of 2 ms: four calls of half a millisecond a thread
  const int64_t calls = 4 * pool_.threads();
  const double amount = loop(1) * kSteps * static_cast<double>(calls);
  return one_pass(kBursts, amount, [&](size_t) {
    pool_.parallel_for(calls, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) loop(kSteps);
    });
  });
}

Limits LimitProbe::measure() {
  Limits limits;
  limits.threads = pool_.threads();
  limits.cache_bytes = cache_bytes_;
  limits.dram_read = best_of_passes([&] { return read(); });
  limits.dram_copy = best_of_passes([&] { return copy(); });
  limits.l3_read = best_of_passes([&] { return cached_read(); }).burst;
  const auto best_flops = [&](FlopLoop loop) {
    const double before = limits.best_flops();
    const Rate rate = best_of_passes([&] { return flops(loop); });
    if (rate.pass > before) fastest_ = loop;
    return rate;
  };
  limits.fma_portable = best_flops(multiply_add_portable);
  if (cpu_.avx2) limits.fma_avx2 = best_flops(multiply_add_avx2);
  if (cpu_.avx512) limits.fma_avx512 = best_flops(multiply_add_avx512);
  if (cpu_.avx512_bf16) limits.dot_avx512_bf16 = best_flops(dot_pairs_avx512_bf16);
  return limits;
}

}  // namespace assay::cpu

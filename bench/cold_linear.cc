// cold_linear [--k K] [--n N] [--format nvfp4|bf16] [--tokens M] [--row NAME] [--threads T]: one linear on weights that
// are not in any cache. It cycles over as many copies of the matrix as fill five times the last-level cache.
//
// Rounds of a pass of each limit (limits.h) and at least 50 ms of calls, over all copies or on from where the last
// round ended, in turns: what disturbs the machine disturbs both. A share is the best round over the best limit, and
// the median round over the median limit.
#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "backend/cpu/limits.h"
#include "base/clock.h"
#include "ops/linear/linear.h"
#include "ops/testing.h"

namespace assay::ops {
namespace {

using WF = numeric::WeightFormat;

struct Options {
  int64_t k = 4096, n = 16384, tokens = 1;
  WF format = WF::kNvfp4;
  int threads = 0;
  std::string row;  // empty: every one that can run, but the reference
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view flag = argv[i];
    const char* value = argv[i + 1];
    if (flag == "--k") options.k = std::atoll(value);
    if (flag == "--n") options.n = std::atoll(value);
    if (flag == "--tokens") options.tokens = std::atoll(value);
    if (flag == "--threads") options.threads = std::atoi(value);
    if (flag == "--format") options.format = std::string_view(value) == "bf16" ? WF::kBf16 : WF::kNvfp4;
    if (flag == "--row") options.row = value;
  }
  return options;
}

int64_t matrix_bytes(const Options& options) {
  const int64_t weights = options.n * options.k;
  return options.format == WF::kBf16 ? weights * 2 : weights / 2 + weights / 16;
}

// 64 random rows, over and over: making them all would take longer than the measurement.
testing::OwnedMatrix random_rows(testing::Random& random, const Options& options) {
  const testing::OwnedMatrix few = testing::random_matrix(random, options.format, 64, options.k);
  testing::OwnedMatrix all(options.format, options.n, options.k);
  const auto repeat = [](ConstBytes from, std::byte* to, size_t bytes) {
    for (size_t at = 0; at < bytes; at += from.size()) {
      std::memcpy(to + at, from.data(), std::min(from.size(), bytes - at));
    }
  };
  repeat(few.matrix.data, all.data_bytes(), all.matrix.data.size());
  repeat(few.matrix.scales, all.scale_bytes(), all.matrix.scales.size());
  return all;
}

void measure(testing::Cpu& cpu, const Options& options, const std::vector<WeightId>& copies, const char* row,
             cpu::LimitProbe& probe) {
  const LinearDesc desc{options.n, options.k, options.format, weight_only_lane(options.format)};
  std::vector<testing::Cpu::Ready<LinearOp>> plans;
  for (const WeightId id : copies) {
    plans.push_back(cpu.prepare<LinearOp>(row, desc, {static_cast<int32_t>(options.tokens), 1}, {id}));
  }
  testing::Random random(2);
  testing::Tensor x(DType::kBf16, options.tokens, options.k), y(DType::kBf16, options.tokens, options.n);
  x.fill_normal(random);
  LinearOp::Args args;
  args.tokens = {0, static_cast<int32_t>(options.tokens), nullptr};
  args.x = x.view();
  args.y = y.view();
  constexpr int kRounds = 15;
  constexpr int64_t kRoundUs = 50'000;
  std::vector<double> calls_per_s, bytes_per_s, flops_per_s;
  size_t next = 0;
  for (int round = 0; round < kRounds; ++round) {
    bytes_per_s.push_back(probe.read_pass());
    flops_per_s.push_back(probe.flop_pass());
    const int64_t begin = now_us();
    int64_t calls = 0, elapsed = 0;
    for (; elapsed < kRoundUs; elapsed = now_us() - begin, ++calls) plans[next++ % plans.size()].run(args);
    calls_per_s.push_back(1e6 * static_cast<double>(calls) / static_cast<double>(elapsed));
  }
  const auto bytes = static_cast<double>(matrix_bytes(options));
  const double flops = 2.0 * static_cast<double>(options.n * options.k * options.tokens);
  const auto print = [&](const char* what, double (*pick)(std::vector<double>)) {
    const double calls = pick(calls_per_s), read = pick(bytes_per_s), best = pick(flops_per_s);
    fmt::print(
        "{:<18} {:<6} {:>10.1f} us {:>6.1f} of {:>5.1f} GB/s read: {:.2f}; {:>6.1f} of {:>6.1f} GFLOP/s: {:.2f}\n", row,
        what, 1e6 / calls, calls * bytes / 1e9, read / 1e9, calls * bytes / read, calls * flops / 1e9, best / 1e9,
        calls * flops / best);
  };
  print("best", [](std::vector<double> rates) { return *std::max_element(rates.begin(), rates.end()); });
  print("median", [](std::vector<double> rates) {
    std::nth_element(rates.begin(), rates.begin() + kRounds / 2, rates.end());
    return rates[kRounds / 2];
  });
}

void run(const Options& options) {
  testing::Cpu cpu(options.threads);
  cpu::LimitProbe probe(cpu::pool_of(cpu.device().stream()), cpu.device().caps());
  const cpu::Limits before = probe.measure();
  const int64_t count = 5 * static_cast<int64_t>(before.cache_bytes) / matrix_bytes(options) + 1;
  testing::Random random(1);
  std::vector<WeightId> copies;
  const testing::OwnedMatrix first = random_rows(random, options);
  for (int64_t i = 0; i < count; ++i) {
    testing::OwnedMatrix copy(options.format, options.n, options.k);
    std::memcpy(copy.data_bytes(), first.matrix.data.data(), first.matrix.data.size());
    if (options.format == WF::kNvfp4) {
      std::memcpy(copy.scale_bytes(), first.matrix.scales.data(), first.matrix.scales.size());
    }
    copies.push_back(cpu.weights().add(std::move(copy)));
  }
  const LinearDesc desc{options.n, options.k, options.format, weight_only_lane(options.format)};
  fmt::print("{}, {} threads; {} M={}, {} copies of {:.1f} MB\n", cpu.device().caps().name, before.threads,
             describe(desc), options.tokens, count, static_cast<double>(matrix_bytes(options)) / 1e6);
  fmt::print("limits before: read {:.1f} GB/s ({:.1f} in its best burst), {:.1f} GFLOP/s\n",
             before.dram_read.pass / 1e9, before.dram_read.burst / 1e9, before.best_flops() / 1e9);
  for (const char* row : testing::cpu_rows<LinearOp>(desc, cpu.device().caps())) {
    if (options.row.empty() ? std::string_view(row) != "reference" : options.row == row) {
      measure(cpu, options, copies, row, probe);
    }
  }
}

}  // namespace
}  // namespace assay::ops

int main(int argc, char** argv) {
  assay::ops::run(assay::ops::parse(argc, argv));
  return 0;
}

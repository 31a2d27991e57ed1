// assay bench limits: what this machine can do, the figures that speeds are shares of.
#include <fmt/core.h>

#include <memory>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "assay/bench_limits.h"
#include "backend/cpu/cpu_device.h"

namespace assay::app {
namespace {

struct LimitsOptions {
  int threads = 0;
  bool json = false;
};

Result<void> run(const LimitsOptions& options) {
  const auto device = cpu::make_cpu_device(options.threads);
  const cpu::Limits limits = cpu::measure_limits(cpu::pool_of(device->stream()), device->caps());
  if (options.json) {
    nlohmann::ordered_json out = limits_json(limits);
    out["machine"] = device->caps().name;
    fmt::print("{}\n", out.dump());
    return {};
  }
  fmt::print("{}, {} threads, last-level cache {} MiB\n", device->caps().name, limits.threads,
             limits.cache_bytes >> 20);
  const auto line = [](const char* what, double value, const char* unit) {
    if (value > 0) fmt::print("{:<34} {:>8.1f} {}\n", what, value / 1e9, unit);
  };
  line("DRAM read (5x the cache)", limits.dram_read, "GB/s");
  line("DRAM copy (read + written)", limits.dram_copy, "GB/s");
  line("last-level cache read", limits.l3_read, "GB/s");
  line("fp32 multiply, add (portable)", limits.fma_portable, "GFLOP/s");
  line("fp32 multiply-add, AVX2", limits.fma_avx2, "GFLOP/s");
  line("fp32 multiply-add, AVX-512", limits.fma_avx512, "GFLOP/s");
  line("bf16 dot, AVX-512", limits.dot_avx512_bf16, "GFLOP/s");
  return {};
}

}  // namespace

nlohmann::ordered_json limits_json(const cpu::Limits& limits) {
  return {{"threads", limits.threads},
          {"cache_bytes", limits.cache_bytes},
          {"dram_read_bytes_per_s", limits.dram_read},
          {"dram_copy_bytes_per_s", limits.dram_copy},
          {"l3_read_bytes_per_s", limits.l3_read},
          {"fma_portable_flop_per_s", limits.fma_portable},
          {"fma_avx2_flop_per_s", limits.fma_avx2},
          {"fma_avx512_flop_per_s", limits.fma_avx512},
          {"dot_avx512_bf16_flop_per_s", limits.dot_avx512_bf16},
          {"best_flop_per_s", limits.best_flops()}};
}

Command add_bench_limits(CLI::App& parent) {
  auto options = std::make_shared<LimitsOptions>();
  CLI::App* app = parent.add_subcommand("limits", "Measure memory bandwidth and FLOP/s of this CPU");
  app->add_option("--threads", options->threads, "CPU threads; 0: all this process may use")
      ->check(CLI::Range(0, 4096));
  app->add_flag("--json", options->json, "Print one object");
  return {app, [options] { return run(*options); }};
}

}  // namespace assay::app

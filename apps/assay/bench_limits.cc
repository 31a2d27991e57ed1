// assay bench limits: what this machine can do, the figures that speeds are shares of.
#include <fmt/core.h>

#include <algorithm>
#include <memory>

#include <nlohmann/json.hpp>

#include "assay/bench_limits.h"
#include "assay/common_options.h"
#include "backend/make_device.h"

namespace assay::app {
namespace {

struct LimitsOptions {
  std::string device = "cpu";
  int threads = 0;
  bool json = false;
};

Result<void> run(const LimitsOptions& options) {
  ASSAY_ASSIGN(const std::unique_ptr<device::Device> device, backend::make_device(options.device, options.threads));
  ASSAY_ASSIGN(const backend::Limits limits, backend::measure_limits(*device));
  const device::DeviceCaps& caps = device->caps();
  if (options.json) {
    nlohmann::ordered_json out{{"threads", caps.multiprocessors}};
    out.update(limits_json(limits));
    out["machine"] = caps.name;
    fmt::print("{}\n", out.dump());
    return {};
  }
  fmt::print("{}, {} {}, last-level cache {} MiB\n", caps.name, caps.multiprocessors,
             caps.backend == device::Backend::kCpu ? "threads" : "multiprocessors", limits.cache_bytes >> 20);
  if (caps.backend == device::Backend::kCpu) {
    fmt::print("best of ten whole passes: memory over five times the cache, FLOP/s for 50 ms, all threads\n");
  }
  for (const backend::Figure& figure : limits.figures) {
    if (figure.value > 0) {
      fmt::print("{:<34} {:>10.1f} {:<7}{}\n", figure.label, figure.value / 1e9, figure.flops ? "GFLOP/s" : "GB/s",
                 figure.burst > 0 ? fmt::format(" ({:.1f} in its best burst)", figure.burst / 1e9) : "");
    }
  }
  return {};
}

}  // namespace

nlohmann::ordered_json limits_json(const backend::Limits& limits) {
  nlohmann::ordered_json out{{"cache_bytes", limits.cache_bytes}};
  for (const backend::Figure& figure : limits.figures) {
    out[figure.key] = figure.value;
    if (figure.burst > 0) out["best_burst_" + figure.key] = figure.burst;
  }
  out["best_flop_per_s"] = limits.flops;
  return out;
}

Command add_bench_limits(CLI::App& parent) {
  auto options = std::make_shared<LimitsOptions>();
  CLI::App& app = add_subcommand(parent, "limits", "Measure memory bandwidth and FLOP/s of a device");
  add_option(app, "--device", options->device, "What to measure: cpu, cuda or cuda:INDEX").show_default();
  add_option(app, "--threads", options->threads, "CPU threads; 0: as many as the process may use")
      .range(0, 4096)
      .show_default();
  add_flag(app, "--json", options->json, "Print one object");
  return {&app, [options] { return run(*options); }};
}

}  // namespace assay::app

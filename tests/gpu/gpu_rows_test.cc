// Proves the rows of a GPU against the CPU's reference rows: prints a table, with --json FILE also a record of it; with
// --op NAME those of one op, with --without-row NAME all but those of that name.
// Exits with 77 (skipped) where there is no GPU that this build has code for.
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>

#include <nlohmann/json.hpp>
#include "gpu/gpu_harness.h"

namespace {

using assay::gpu_test::Outcome;

constexpr int kSkipped = 77;

void print_table(const std::vector<Outcome>& outcomes) {
  struct Line {
    int cases = 0, failed = 0;
    double ratio = 0;
  };
  std::map<std::pair<std::string, std::string>, Line> lines;
  for (const Outcome& outcome : outcomes) {
    Line& line = lines[{outcome.op, outcome.row}];
    ++line.cases;
    line.failed += !outcome.ok();
    line.ratio = std::max(line.ratio, outcome.ratio);
  }
  fmt::print("{:14} {:18} {:>6} {:>7} {:>13}\n", "op", "row", "cases", "failed", "error/bound");
  for (const auto& [key, line] : lines) {
    fmt::print("{:14} {:18} {:6} {:7} {:13.4f}\n", key.first, key.second, line.cases, line.failed, line.ratio);
  }
  for (const Outcome& outcome : outcomes) {
    if (outcome.ok()) continue;
    fmt::print("FAILED {} {} {}: error/bound {:.4g}{}{}{}{} {}\n", outcome.op, outcome.row, outcome.name, outcome.ratio,
               outcome.same_in_graph ? "" : ", differs in a graph",
               outcome.dead_untouched ? "" : ", dead token written", outcome.same_flags ? "" : ", wrong flags",
               outcome.invariant ? "" : ", depends on the batch", outcome.failure);
  }
}

nlohmann::ordered_json record(const std::vector<Outcome>& outcomes, const assay::device::DeviceCaps& caps) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const Outcome& o : outcomes) {
    rows.push_back({{"op", o.op},
                    {"row", o.row},
                    {"case", o.name},
                    {"ok", o.ok()},
                    {"error_over_bound", o.ratio},
                    {"same_in_graph", o.same_in_graph},
                    {"dead_untouched", o.dead_untouched},
                    {"same_flags", o.same_flags},
                    {"batch_invariant", o.invariant},
                    {"failure", o.failure}});
  }
  return {{"device", caps.name}, {"sm", caps.sm}, {"rows", rows}};
}

std::string option(int argc, char** argv, const char* name) {
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::strcmp(argv[i], name) == 0) return argv[i + 1];
  }
  return "";
}

}  // namespace

int main(int argc, char** argv) {
  const auto report = assay::device::find_gpus();
  fmt::print("{}\n", report.text());
  auto device = assay::device::make_cuda_device(0);
  if (!device.ok()) {
    fmt::print("skipped: {}\n", device.error().message());
    return kSkipped;
  }
  assay::gpu_test::Gpu gpu(std::move(device).value());
  assay::gpu_test::Suite suite(gpu, option(argc, argv, "--op"), option(argc, argv, "--without-row"));
  assay::gpu_test::check_packing(suite);
  assay::gpu_test::check_matrix_ops(suite);
  assay::gpu_test::check_sequence_ops(suite);
  print_table(suite.outcomes());
  bool ok = !suite.outcomes().empty();
  for (const Outcome& outcome : suite.outcomes()) ok = ok && outcome.ok();
  if (const std::string file = option(argc, argv, "--json"); !file.empty()) {
    std::ofstream(file) << record(suite.outcomes(), gpu.device().caps()).dump(1) << "\n";
  }
  fmt::print("{}: {} cases\n", ok ? "passed" : "FAILED", suite.outcomes().size());
  return ok ? 0 : 1;
}

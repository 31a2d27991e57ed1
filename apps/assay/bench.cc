// assay bench: tokens per second of a model over context lengths and batch sizes, and the times of its ops.
#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <memory>
#include <utility>

#include "assay/bench_limits.h"
#include "assay/bench_report.h"
#include "assay/bench_sequences.h"
#include "assay/command.h"
#include "assay/common_options.h"
#include "ops/all_ops.h"

namespace assay::app {
namespace {

struct BenchOptions {
  CommonOptions common;
  std::vector<int32_t> contexts{512};
  std::vector<int32_t> batches{1};
  int32_t decode_tokens = 128;
  int32_t repeats = 3;
  bool ops = false;
  std::string only_op;
  std::string plot;
  bool json = false;

  int32_t largest_batch() const { return *std::max_element(batches.begin(), batches.end()); }
  int32_t most_positions() const { return *std::max_element(contexts.begin(), contexts.end()) + decode_tokens; }
  bool with_ops() const { return ops || !only_op.empty() || !plot.empty(); }
};

void progress(const std::string& line) { fmt::print(stderr, "{}\n", line); }

// The median of `repeats` timings in seconds, after one that does not count.
template <class Run>
Result<double> median_seconds(int32_t repeats, const Run& run) {
  ASSAY_ASSIGN([[maybe_unused]] const double warm_up, run());
  std::vector<double> seconds;
  for (int32_t i = 0; i < repeats; ++i) {
    ASSAY_ASSIGN(const double one, run());
    seconds.push_back(one);
  }
  std::nth_element(seconds.begin(), seconds.begin() + repeats / 2, seconds.end());
  return seconds[static_cast<size_t>(repeats / 2)];
}

// Measures section by section: a prefill, or decode of one batch, and with `timer` the ops of it, between two
// measurements of the limits, which drift on machines that others share.
class Sections {
 public:
  Sections(engine::ObservedEngine& engine, OpTimer* timer, BenchSequences& sequences, const BenchOptions& options,
           BenchReport& report)
      : engine_(engine), timer_(timer), sequences_(sequences), options_(options), report_(report) {}

  Result<void> measure() {
    if (timer_) {
      ASSAY_ASSIGN(limits_, backend::measure_limits(engine_.device()));
      report_.limits = limits_;
    }
    for (int32_t context : options_.contexts) {
      ASSAY_TRY(prefill(context));
      for (int32_t batch : options_.batches) ASSAY_TRY(decode(context, batch));
    }
    report_.roof = roof_of(report_.limits);
    return {};
  }

 private:
  Result<void> prefill(int32_t context) {
    const auto run = [&] { return sequences_.prefill(context); };
    ASSAY_ASSIGN(const double seconds, median_seconds(options_.repeats, run));
    report_.prefill.push_back({context, context / seconds});
    OpTable table{ops::Phase::kPrefill, context, 1, report_.prefill.back().tokens_per_s, {}, {}, {}};
    return add(std::move(table), options_.repeats, run);
  }

  Result<void> decode(int32_t context, int32_t batch) {
    constexpr int32_t kMinSteps = 15;  // of op tables: short, so that more of them cost little
    const int32_t steps = options_.decode_tokens;
    ASSAY_ASSIGN(const double seconds,
                 median_seconds(options_.repeats, [&] { return sequences_.decode(batch, context, steps); }));
    report_.decode.push_back({context, batch, static_cast<double>(batch) * steps / seconds});
    OpTable table{ops::Phase::kDecode, context, batch, report_.decode.back().tokens_per_s, {}, {}, {}};
    return add(std::move(table), std::max(options_.repeats, kMinSteps),
               [&] { return sequences_.decode(batch, context, 1); });
  }

  template <class Run>
  Result<void> add(OpTable table, int32_t repeats, const Run& run) {
    progress(fmt::format("{}: {:.1f} tokens/s", table.title(), table.tokens_per_s));
    if (!timer_) return {};
    ASSAY_ASSIGN(table.ops, timer_->measure(engine_.device(), repeats, [&]() -> Result<void> {
      ASSAY_ASSIGN([[maybe_unused]] const double seconds, run());
      return {};
    }));
    ASSAY_ASSIGN(backend::Limits after, backend::measure_limits(engine_.device()));
    table.limits = best_of(std::exchange(limits_, after), after);
    table.roof = roof_of(table.limits);
    report_.limits = best_of(report_.limits, after);
    report_.tables.push_back(std::move(table));
    return {};
  }

  // Rows without a layout of their own read the checkpoint's bytes.
  Roof roof_of(const backend::Limits& limits) const {
    const int64_t weights = std::max(report_.model.packed_bytes, report_.model.checkpoint_bytes);
    return {limits.bandwidth(static_cast<size_t>(weights)), limits.flops};
  }

  engine::ObservedEngine& engine_;
  OpTimer* timer_;  // null: no op tables
  BenchSequences& sequences_;
  const BenchOptions& options_;
  BenchReport& report_;
  backend::Limits limits_;  // measured last
};

// What was not asked for follows from the sweep: no more states and pages than its sequences need.
engine::LoadOptions sized_for_sweep(const BenchOptions& options, const CLI::App& app) {
  const auto given = [&](const char* flag) { return find_option(app, flag).given(); };
  engine::LoadOptions load = load_options(options.common);
  if (!given("--context-length")) load.context_tokens = options.most_positions();
  if (!given("--max-running-requests")) load.max_sequences = options.largest_batch();
  if (!given("--kv-cache-bytes")) load.kv_cache_bytes = std::numeric_limits<int64_t>::max();
  load.max_step_tokens = std::max(load.max_step_tokens, options.largest_batch());
  load.progress = progress;
  return load;
}

Result<void> write_plot(const BenchOptions& options, const BenchReport& report) {
  std::ofstream file(options.plot, std::ios::binary);
  file << roofline_svg(options.common.model_directory + " on " + report.model.device, report.roof, report.tables);
  if (file.flush()) return {};
  return Error{ErrorKind::kIo, "cannot write the picture", options.plot, std::strerror(errno), "", ""};
}

Result<void> run(const BenchOptions& options, const CLI::App& app) {
  if (options.common.model_directory.empty()) {
    return Error{ErrorKind::kInvalidArgument, "no model directory given", "", "", "", "or `assay bench limits`"};
  }
  apply_log_level(options.common.log_level);
  ASSAY_TRY(apply_nice(options.common.nice));
  OpTimer timer;
  OpTimer* const observer = options.with_ops() ? &timer : nullptr;
  ASSAY_ASSIGN(const std::unique_ptr<engine::ObservedEngine> engine,
               engine::load_observed(sized_for_sweep(options, app), observer));
  if (options.common.explain) fmt::print(stderr, "{}", engine->explain());
  ASSAY_ASSIGN(BenchSequences sequences,
               BenchSequences::make(*engine, options.largest_batch(), options.most_positions()));
  BenchReport report;
  report.model = engine->summary();
  report.layers = static_cast<int32_t>(engine->config().num_layers);
  report.decode_tokens = options.decode_tokens;
  report.repeats = options.repeats;
  report.only_op = options.only_op;
  ASSAY_TRY(Sections(*engine, observer, sequences, options, report).measure());
  fmt::print("{}\n", options.json ? report_json(report) : report_text(report));
  if (!options.plot.empty()) ASSAY_TRY(write_plot(options, report));
  return {};
}

std::vector<std::string> names_of_part_ops() {
  std::vector<std::string> names;
  ops::for_each_op([&]<class Op>() {
    if (ops::HasWork<Op>) names.emplace_back(Op::kName);
  });
  return names;
}

constexpr char kDescription[] =
    "Measure prefill and decode tokens per second, and the times of the ops.\n"
    "Steps go straight to the engine, without scheduler and text. Prefill: the prompt of one sequence, in steps of at "
    "most 512 tokens. Decode: every sequence has its own KV pages and recurrent state, filled with noise instead of a "
    "prefill, so a step reads as many bytes as it would while serving; tokens are sampled greedily and fed back.\n"
    "Ops are timed inside the engine, one call after the other as the model runs them: on a CPU by the clock, on a GPU "
    "by events in a captured decode step. Their limit is the least time that the bandwidth and the best FLOP/s, "
    "the best of right before and right after, allow: read bandwidth on a CPU (of the cache if the weights fit in it), "
    "copy bandwidth "
    "on a GPU.";

}  // namespace

Command add_bench(CLI::App& parent) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App& app = add_subcommand(parent, "bench", kDescription);
  add_common_options(app, options->common);
  add_nice(app, options->common.nice);
  find_option(app, "model").required(false);  // limits needs none
  const Command limits = add_bench_limits(app);
  constexpr int kMost = 1 << 24;
  add_option(app, "--context", options->contexts, "Tokens of the prompt, and before a decode step; one or more")
      .comma_separated()
      .range(1, kMost)
      .show_default();
  add_option(app, "--batch", options->batches, "Sequences that decode at once; one or more")
      .comma_separated()
      .range(1, 4096)
      .show_default();
  add_option(app, "--decode-tokens", options->decode_tokens, "Steps of one timing of decode")
      .range(1, kMost)
      .show_default();
  add_option(app, "--repeats", options->repeats, "Timings to take the median of, after a warm-up")
      .range(1, 1000)
      .show_default();
  add_flag(app, "--ops", options->ops, "Time each op too: of a prefill and of a decode step of each context and batch");
  add_option(app, "--op", options->only_op, "Time the ops, and print this one only").one_of(names_of_part_ops());
  add_option(app, "--plot", options->plot, "Time the ops, and draw them below the limits into this SVG file");
  add_flag(app, "--json", options->json,
           "Print one object: prefill_tokens_per_s, decode_tokens_per_s (of the first --context and --batch), threads, "
           "machine, memory (the ledger), and all that was measured");
  return {&app, [options, &app, limits] { return parsed(*limits.app) ? limits.run() : run(*options, app); }};
}

}  // namespace assay::app

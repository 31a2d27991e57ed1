// A release has no faults: this file is empty in it.
#if ASSAY_FAULTS
#include "assay/self_test.h"

#include <fmt/core.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>

#include "fault.h"
#include "ops/experts/experts.h"
#include "ops/linear/linear.h"
#include "proof/kernels.h"

namespace assay::app {
namespace {

class FaultyOnly : public proof::KernelSink {
 public:
  explicit FaultyOnly(std::string op) : op_(std::move(op)) {}
  bool wanted(std::string_view op, const std::string&, std::string_view row) override {
    return op == op_ && (row == "faulty" || row == "cpu_portable") && !caught.has_value();
  }
  void begin(std::string_view, const std::string&, std::string_view) override { ++descs; }
  void done(proof::Verdict verdict) override {
    if (verdict.row == "cpu_portable") {
      differs = differs || verdict.digest != last_digest_;
      return;
    }
    last_digest_ = verdict.digest;
    if (verdict.state == proof::State::kFailed && !caught) caught = std::move(verdict);
  }
  std::optional<proof::Verdict> caught;
  int descs = 0;
  bool differs = false;  // from the healthy row in any bit: the first row of a Desc is the faulty one

 private:
  uint64_t last_digest_ = 0;
  std::string op_;
};

// Faults that end a process, and plain ones for tests of what a server does about them.
void add_serving_faults(std::vector<faults::Entry>& list) {
  list.push_back(faults::fault<ops::LinearOp>({"crash", [](auto&) { std::abort(); }}));
  list.push_back(faults::fault<ops::LinearOp>({"hang", [](auto&) {
                                                 for (;;) sleep(1);
                                               }}));
  list.push_back(faults::fault<ops::LinearOp>({"one NaN", [](auto& run) {
                                                 if (run.after) faults::set(run.args.y, 0, 0, std::nanf(""));
                                               }}));
  list.push_back(faults::fault<ops::ExpertsOp>({"five percent on one expert", {}, [](faults::OwnWeight& own, size_t) {
                                                  constexpr size_t kUpOfExpert1 = 3 + 1;
                                                  own.source.matrices[kUpOfExpert1].global_scale *= 1.05f;
                                                }}));
}

}  // namespace

Result<void> run_self_test(const engine::LoadOptions& options) {
  int missed = 0, total = 0;
  ASSAY_TRY(engine::visit_instances(
      options, [&](const ops::Instances& instances, device::Device& device, ops::WeightProvider& weights) {
        fmt::print("{:<13} {:<52} {:<11} {:>4}  {}\n", "op", "fault", "caught by", "run", "where");
        for (const faults::Entry& entry : faults::all_faults()) {
          entry.install();
          FaultyOnly sink(entry.op);
          proof::KernelOptions kernels = options.proof.certify.kernels;
          kernels.row_budget_ms = 0;
          for (const int repeats : {2, 8, 64, 512}) {
            if (sink.caught || (repeats > 2 && !entry.rare)) break;
            kernels.repeats = repeats;
            proof::prove_kernels(instances, device, weights, kernels, sink);
          }
          entry.remove();
          if (sink.descs == 0) continue;  // the model has no such op
          if (!sink.caught && !sink.differs) {
            fmt::print("{:<13} {:<52} changes nothing in this model\n", entry.op, entry.name);
            continue;
          }
          ++total;
          missed += sink.caught ? 0 : 1;
          fmt::print("{:<13} {:<52} {:<11} {:>4}  {}\n", entry.op, entry.name,
                     sink.caught ? ops::evidence_name(sink.caught->worst.kind) : "NOT CAUGHT",
                     sink.caught ? sink.caught->repeats : 0, sink.caught ? sink.caught->reason.substr(0, 100) : "");
        }
      }));
  fmt::print("{} of {} faults caught\n", total - missed, total);
  if (missed == 0) return {};
  return Error{ErrorKind::kNumerical, "faults were not caught", "", std::to_string(missed), "none", ""};
}

void install_fault_from_environment() {
  const char* wanted = std::getenv("ASSAY_FAULT");
  if (wanted == nullptr) return;
  static std::vector<faults::Entry> list = faults::all_faults();
  add_serving_faults(list);
  for (const faults::Entry& entry : list) {
    if ((entry.op + ":" + entry.name).find(wanted) == std::string::npos) continue;
    entry.install();
    fmt::print(stderr, "fault installed: {}: {}\n", entry.op, entry.name);
    return;
  }
  fmt::print(stderr, "no such fault: {}\n", wanted);
  std::exit(2);
}

}  // namespace assay::app
#endif

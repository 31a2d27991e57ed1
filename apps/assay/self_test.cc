#include "assay/self_test.h"

#include <fmt/core.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
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
    return op == op_ && (row == "faulty" || row == faults::wrapped_row()) && !caught.has_value();
  }
  void begin(std::string_view, const std::string&, std::string_view) override { ++descs; }
  void done(proof::Verdict verdict) override {
    if (verdict.row != "faulty") {
      differs = differs || verdict.digest != last_digest_;
      return;
    }
    last_digest_ = verdict.digest;
    if (verdict.state == proof::State::kFailed && !caught) caught = std::move(verdict);
  }
  std::optional<proof::Verdict> caught;
  int descs = 0;
  bool differs = false;  // from the healthy row in any bit: of a Desc the faulty row comes first

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

class SelfTest {
 public:
  SelfTest(const ops::Instances& instances, device::Device& device, ops::WeightProvider& weights,
           const proof::CertifyOptions& options)
      : instances_(instances),
        device_(device),
        visible_(faults::host_visible(device)),
        weights_(weights),
        options_(options) {}

  void run(const faults::Entry& entry) {
    const bool on_gpu = visible_ != nullptr;
    if ((!options_.only_op.empty() && entry.op != options_.only_op) || (entry.gpu_only && !on_gpu)) return;
    const FaultyOnly sink = prove(entry, on_gpu && !entry.gpu_only);
    if (sink.descs == 0) return;  // the model has no such op
    const bool race = entry.gpu_only && entry.rare;
    if (!sink.caught && !sink.differs && !race) return say(entry, "changes nothing in this model");
    ++total_;
    if (!sink.caught) {
      ++missed_;
      return say(entry, "NOT CAUGHT");
    }
    say(entry, fmt::format("{:<11} {:>4}  {}", ops::evidence_name(sink.caught->worst.kind), sink.caught->repeats,
                           sink.caught->reason.substr(0, 100)));
  }

  Result<void> result() const {
    fmt::print("{} of {} faults caught\n", total_ - missed_, total_);
    if (missed_ == 0) return {};
    return Error{ErrorKind::kNumerical, "faults were not caught", "", std::to_string(missed_), "none", ""};
  }

 private:
  static void say(const faults::Entry& entry, std::string_view found) {
    fmt::print("{:<13} {:<52} {}\n", entry.op, entry.name, found);
    std::fflush(stdout);  // faults take long: who reads along sees them, and what was seen outlives a time limit
  }

  // on_host: with memory that the host sees, because the fault changes it there.
  FaultyOnly prove(const faults::Entry& entry, bool on_host) const {
    entry.install(device_.caps());
    FaultyOnly sink(entry.op);
    proof::KernelOptions kernels = options_.kernels;
    kernels.recorded = !on_host;  // what the host does is not part of a recording
    kernels.row_budget_ms = 0;
    for (const int repeats : {2, 8, 64, 512}) {
      if (sink.caught || (repeats > 2 && !entry.rare)) break;
      kernels.repeats = repeats;
      proof::prove_kernels(instances_, on_host ? *visible_ : device_, weights_, kernels, sink);
    }
    entry.remove();
    return sink;
  }

  const ops::Instances& instances_;
  device::Device& device_;
  const std::unique_ptr<device::Device> visible_;
  ops::WeightProvider& weights_;
  const proof::CertifyOptions& options_;
  int missed_ = 0, total_ = 0;
};

Result<void> run_self_test(const engine::LoadOptions& options) {
  Result<void> result;
  ASSAY_TRY(engine::visit_instances(
      options, [&](const ops::Instances& instances, device::Device& device, ops::WeightProvider& weights) {
        fmt::print("{:<13} {:<52} {:<11} {:>4}  {}\n", "op", "fault", "caught by", "run", "where");
        SelfTest test(instances, device, weights, options.proof.certify);
        for (const faults::Entry& entry : faults::all_faults()) test.run(entry);
        result = test.result();
      }));
  return result;
}

void install_fault_from_environment() {
  const char* wanted = std::getenv("ASSAY_FAULT");
  if (wanted == nullptr) return;
  static std::vector<faults::Entry> list = faults::all_faults();
  add_serving_faults(list);
  for (const faults::Entry& entry : list) {
    if ((entry.op + ":" + entry.name).find(wanted) == std::string::npos) continue;
    entry.install({});
    fmt::print(stderr, "fault installed: {}: {}\n", entry.op, entry.name);
    return;
  }
  fmt::print(stderr, "no such fault: {}\n", wanted);
  std::exit(2);
}

}  // namespace

const Faults* built_in_faults() {
  static constexpr Faults faults{run_self_test, install_fault_from_environment};
  return &faults;
}

}  // namespace assay::app

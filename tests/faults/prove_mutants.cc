// Proves one row once for each mutant, each in a process of its own.
//
//   prove_mutants OP ROW [--jobs N] [--seconds N] < NUMBERS
//
// Prints a line of JSON for each number: {"mutant": 17, "verdict": "killed", "by": "sampled", "where": ".."}. Number -1
// is the row as it is and must pass. Verdicts: killed (by a kind of evidence, or "contact": crashed, hung, cannot be
// made), survived, unreached (survived, and nothing asked whether it was chosen), none (no such mutant).
// --seconds: no proof begins later.
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "backend/cpu/cpu_device.h"
#include "mutant.h"
#include "proof/chains.h"
#include "sized_model.h"

namespace mutant {
int chosen = -1;
bool* reached = nullptr;
}  // namespace mutant

namespace assay::mutants {
namespace {

constexpr int kRepeats = 2;

// The evidence about one row, ready to be judged again and again.
class Evidence {
 public:
  virtual ~Evidence() = default;
  // By a kind of evidence and where; empty: passed.
  virtual std::string judge(device::Device& device) = 0;
};

template <class Op>
class DescEvidence : public Evidence {
 public:
  DescEvidence(const proof::DescGroup<Op>& group, faults::SizedModel& model, const ops::Impl<Op>& impl)
      : impl_(impl), group_(group), synthetic_(*model.device) {
    ops::CaseRandom random(1);
    weights_ = synthetic(group.desc, synthetic_, random);
    cases_ = make_cases(group.desc, weights_, {*model.device, synthetic_, group.bucket, ops::Effort::kNormal, 1});
    find_sibling(*model.device);
  }

  std::string judge(device::Device& device) override {
    const proof::Verdict verdict = run(impl_, device);
    if (verdict.state == proof::State::kFailed) return verdict.reason;
    if (sibling_digest_ != 0 && verdict.digest != sibling_digest_) return "order: differs from " + sibling_;
    return "";
  }

 private:
  proof::Verdict run(const ops::Impl<Op>& impl, device::Device& device) {
    proof::Verdict verdict;
    verdict.state = proof::State::kPassed;
    auto row = proof::ReadyRow<Op>::make(impl, group_.desc, group_.bucket, weights_, device, synthetic_);
    if (row.ok()) {
      proof::run_chains(*row, cases_, {kRepeats, 0}, verdict);
    } else {
      verdict.state = proof::State::kFailed;
      verdict.reason = "contact: " + row.error().message();
    }
    return verdict;
  }

  // The next row of the same order.
  void find_sibling(device::Device& device) {
    const ops::OrderId order = impl_.order(group_.desc);
    if (order == ops::OrderId::kNone) return;
    bool later = false;
    for (const ops::Impl<Op>* other : ops::rows<Op>()) {
      if (later && other->order(group_.desc) == order && !proof::is_light(other->name) &&
          !ops::refusal(*other, group_.desc, device.caps())) {
        sibling_ = other->name;
        sibling_digest_ = run(*other, device).digest;
        return;
      }
      later |= other == &impl_;
    }
  }

  const ops::Impl<Op>& impl_;
  const proof::DescGroup<Op>& group_;
  ops::CaseWeights synthetic_;
  typename Op::Weights weights_{};
  std::vector<ops::Case<Op>> cases_;
  std::string sibling_;
  uint64_t sibling_digest_ = 0;
};

class RowEvidence {
 public:
  RowEvidence(std::string op, std::string row) : op_(std::move(op)), row_(std::move(row)) {}

  void add(const faults::ModelSizes& sizes) {
    // No threads before the forks.
    models_.push_back(std::make_unique<faults::SizedModel>(sizes, models_.size() + 1, 1));
    add_narrow(*models_.back(), sizes);
    ops::for_each_op([&]<class Op>() {
      if constexpr (ops::HasCases<Op>) {
        if (op_ == Op::kName) add_descs<Op>(*models_.back());
      }
    });
  }
  bool empty() const { return evidence_.empty(); }

  std::string judge() {
    const auto device = cpu::make_cpu_device(2);
    for (const auto& evidence : evidence_) {
      std::string found = evidence->judge(*device);
      if (!found.empty()) return found;
    }
    return "";
  }

 private:
  // So few outputs that cases have hundreds of tokens, where kernels take another way, and a k that is no multiple
  // of 16.
  static void add_narrow(faults::SizedModel& model, const faults::ModelSizes& sizes) {
    using numeric::WeightFormat;
    const ops::LinearDesc desc{51,
                               sizes.hidden - 3,
                               WeightFormat::kBf16,
                               ops::weight_only_lane(WeightFormat::kBf16),
                               sizes.activation,
                               sizes.activation};
    ops::CaseRandom random(1);
    const auto matrix = model.weights.add({{desc.format, desc.n, desc.k}}, 0.1, random);
    model.instances.add<ops::LinearOp>({desc, {sizes.tokens, sizes.sequences, sizes.tokens}, {matrix}});
  }

  template <class Op>
  void add_descs(faults::SizedModel& model) {
    auto& groups = *static_cast<std::vector<proof::DescGroup<Op>>*>(
        groups_.emplace_back(std::make_shared<std::vector<proof::DescGroup<Op>>>(proof::groups<Op>(model.instances)))
            .get());
    for (const auto& group : groups) {
      for (const ops::Impl<Op>& impl : Op::impls()) {
        if (impl.name != row_ || ops::refusal(impl, group.desc, model.device->caps())) continue;
        evidence_.push_back(std::make_unique<DescEvidence<Op>>(group, model, impl));
      }
    }
  }

  std::string op_, row_;
  std::vector<std::unique_ptr<faults::SizedModel>> models_;
  std::vector<std::shared_ptr<void>> groups_;
  std::vector<std::unique_ptr<Evidence>> evidence_;
};

struct Child {
  int id = 0;
  int pipe = -1;
  int64_t started = 0;
  bool* reached = nullptr;
  bool late = false;
};

[[noreturn]] void prove(RowEvidence& evidence, int id, int out, bool* reached) {
  const rlimit memory{rlim_t{4} << 30, rlim_t{4} << 30}, core{0, 0};
  setrlimit(RLIMIT_AS, &memory);
  setrlimit(RLIMIT_CORE, &core);
  const int null = open("/dev/null", O_WRONLY);
  dup2(null, STDERR_FILENO);
  mutant::reached = reached;
  mutant::chosen = id;
  const std::string found = evidence.judge();
  [[maybe_unused]] const auto written = write(out, found.data(), std::min<size_t>(found.size(), 4096));
  _exit(found.empty() ? 0 : 1);
}

std::string json_string(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 32 ? ' ' : c;
  }
  return out + "\"";
}

void report(const Child& child, int status) {
  std::string said(4096, '\0');
  const auto length = read(child.pipe, said.data(), said.size());
  said.resize(length > 0 ? static_cast<size_t>(length) : 0);
  std::string verdict = "killed", by = "contact", where;
  if (child.late) {
    where = "hung";
  } else if (WIFSIGNALED(status)) {
    where = fmt::format("signal {}", WTERMSIG(status));
  } else if (WEXITSTATUS(status) == mutant::kNone) {
    verdict = "none", by = "";
  } else if (WEXITSTATUS(status) == 0) {
    verdict = *child.reached || child.id < 0 ? "survived" : "unreached", by = "";
  } else {
    const size_t colon = said.find(':');
    if (colon != std::string::npos) by = said.substr(0, colon), where = said.substr(std::min(colon + 2, said.size()));
  }
  fmt::print("{{\"mutant\": {}, \"verdict\": \"{}\", \"by\": \"{}\", \"where\": {}, \"ms\": {}}}\n", child.id, verdict,
             by, json_string(where), (now_us() - child.started) / 1000);
  std::fflush(stdout);
  close(child.pipe);
  munmap(child.reached, sizeof(bool));
}

// Runs all of the list that begin before `end`, `jobs` at a time; a child that takes longer than `limit_us` is ended.
void prove_all(RowEvidence& evidence, std::vector<int> list, size_t jobs, int64_t limit_us, int64_t end) {
  std::map<pid_t, Child> running;
  size_t next = 0;
  while (next < list.size() || !running.empty()) {
    if (now_us() > end) list.resize(next);
    while (next < list.size() && running.size() < jobs) {
      Child child;
      child.id = list[next++];
      void* shared = mmap(nullptr, sizeof(bool), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
      int ends[2];
      if (shared == MAP_FAILED || pipe(ends) != 0) std::exit(2);
      child.pipe = ends[0];
      child.reached = static_cast<bool*>(shared);
      child.started = now_us();
      const pid_t pid = fork();
      if (pid == 0) prove(evidence, child.id, ends[1], child.reached);
      close(ends[1]);
      running.emplace(pid, child);
    }
    int status = 0;
    const pid_t pid = waitpid(-1, &status, WNOHANG);
    if (pid > 0) {
      report(running.at(pid), status);
      running.erase(pid);
      continue;
    }
    for (auto& [late, child] : running) {
      if (child.late || now_us() - child.started < limit_us) continue;
      child.late = true;
      kill(late, SIGKILL);
    }
    usleep(500);
  }
}

}  // namespace

int run(int argc, char** argv) {
  if (argc < 3) {
    std::fputs("usage: prove_mutants OP ROW [--jobs N] [--seconds N] < NUMBERS\n", stderr);
    return 2;
  }
  size_t jobs = 1;
  int64_t end = std::numeric_limits<int64_t>::max();
  for (int i = 3; i + 1 < argc; i += 2) {
    if (argv[i] == std::string_view("--jobs")) jobs = static_cast<size_t>(std::atoi(argv[i + 1]));
    if (argv[i] == std::string_view("--seconds")) end = now_us() + int64_t{1'000'000} * std::atoi(argv[i + 1]);
  }
  RowEvidence evidence(argv[1], argv[2]);
  for (const DType activation : {DType::kBf16, DType::kF32}) {
    const bool bf16 = activation == DType::kBf16;
    evidence.add({.activation = activation,
                  .hidden = 176,  // more than half a block of the dot kernels
                  .kv_heads = bf16 ? 2 : 4,
                  .key_heads = 3,
                  .value_heads = 6,
                  .experts = 64,
                  .fused = 175});
    faults::ModelSizes wide = faults::ModelSizes::wide(activation);
    wide.rotary_dim = 72;  // of 36 angles some are left behind two times sixteen
    evidence.add(wide);
  }
  if (evidence.empty()) {
    fmt::print(stderr, "{} {} runs nothing on this machine\n", argv[1], argv[2]);
    return 3;
  }
  const int64_t start = now_us();
  prove_all(evidence, {-1}, 1, int64_t{600} * 1'000'000, std::numeric_limits<int64_t>::max());
  const int64_t limit_us = 1'000'000 + 5 * (now_us() - start) * static_cast<int64_t>(jobs);
  std::vector<int> list;
  for (int id; std::cin >> id;) list.push_back(id);
  prove_all(evidence, list, jobs, limit_us, end);
  return 0;
}

}  // namespace assay::mutants

int main(int argc, char** argv) { return assay::mutants::run(argc, argv); }

// row_ratio [--json]: microseconds of every CPU row of every part op at the sizes of models/pocket, on one thread, and
// how many times faster than the reference row it is. Ratios are of one run on one machine; nothing here is a test.
#include <fmt/core.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "ops/embed/embed.h"
#include "ops/experts/experts.h"
#include "ops/linear/linear.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/router/router.h"
#include "ops/silu_mul/silu_mul.h"
#include "ops/testing.h"

namespace assay::ops {
namespace {

using testing::Cpu;
using testing::OwnedMatrix;
using testing::Random;
using testing::Tensor;
using WF = numeric::WeightFormat;

constexpr DType kActivation = DType::kBf16;
constexpr int64_t kHidden = 256;
constexpr int64_t kIntermediate = 128;
constexpr int32_t kExperts = 16;
constexpr int32_t kTopK = 4;
constexpr int64_t kVocab = 3072;

struct Timing {
  std::string op, desc, row;
  int32_t tokens;
  double us;
  double ratio;  // reference time / this row's
};

class Report {
 public:
  // Times every row of Op that can run the Desc; rows end with the reference.
  template <class Op>
  void measure(Cpu& cpu, const typename Op::Desc& desc, const typename Op::Weights& weights,
               const typename Op::Args& args, int32_t tokens) {
    const size_t first = timings_.size();
    for (const Impl<Op>& impl : Op::impls()) {
      if (impl.backend != device::Backend::kCpu || impl.can_run(desc, cpu.device().caps())) continue;
      const auto ready = cpu.prepare<Op>(impl.name, desc, {tokens, 1}, weights);
      timings_.push_back(
          {std::string(Op::kName), describe(desc), impl.name, tokens, best_us([&] { ready.run(args); }), 1});
    }
    for (size_t i = first; i < timings_.size(); ++i) timings_[i].ratio = timings_.back().us / timings_[i].us;
  }

  void print_table() const {
    fmt::print("{:<10} {:<62} {:>3}  {:<14} {:>10} {:>8}\n", "op", "desc", "T", "row", "us", "ratio");
    for (const Timing& t : timings_) {
      fmt::print("{:<10} {:<62} {:>3}  {:<14} {:>10.2f} {:>8.2f}\n", t.op, t.desc, t.tokens, t.row, t.us, t.ratio);
    }
  }

  void print_json() const {
    std::string lines;
    for (const Timing& t : timings_) {
      lines += fmt::format(
          "{}  {{\"op\": \"{}\", \"desc\": \"{}\", \"tokens\": {}, \"row\": \"{}\", \"us\": {:.3f}, \"ratio\": "
          "{:.3f}}}",
          lines.empty() ? "" : ",\n", t.op, t.desc, t.tokens, t.row, t.us, t.ratio);
    }
    fmt::print("[\n{}\n]\n", lines);
  }

 private:
  // The mean of the best of at least five rounds of 2 ms, until 100 ms are over: short rounds, so that some are free of
  // neighbours on the same core.
  template <class Body>
  static double best_us(const Body& body) {
    constexpr int64_t kRoundUs = 2'000, kTotalUs = 100'000;
    body();
    double best = 0;
    const int64_t begin = now_us();
    for (int round = 0; round < 5 || now_us() - begin < kTotalUs; ++round) {
      int64_t calls = 0, elapsed = 0;
      for (const int64_t start = now_us(); elapsed < kRoundUs; elapsed = now_us() - start, ++calls) body();
      const double mean = static_cast<double>(elapsed) / static_cast<double>(calls);
      best = round == 0 ? mean : std::min(best, mean);
    }
    return best;
  }

  std::vector<Timing> timings_;
};

Tensor normal(Random& random, DType dtype, int64_t rows, int64_t cols) {
  return std::move(Tensor(dtype, rows, cols, 0).fill_normal(random));
}

TokenCounts counts(int32_t tokens) { return {0, tokens, nullptr}; }

void linear(Report& report, int32_t tokens) {
  struct Shape {
    int64_t n, k;
    WF format;
  };
  // Delta net in, attention in and out, shared expert, head; then expert-like NVFP4 sizes.
  const Shape shapes[] = {{1544, kHidden, WF::kBf16}, {kHidden, 512, WF::kBf16},  {3072, kHidden, WF::kBf16},
                          {kHidden, 1024, WF::kBf16}, {256, kHidden, WF::kBf16},  {kHidden, kIntermediate, WF::kBf16},
                          {256, kHidden, WF::kNvfp4}, {1024, kHidden, WF::kNvfp4}};
  for (const Shape& shape : shapes) {
    Random random(1);
    Cpu cpu;
    const LinearDesc desc{shape.n, shape.k, shape.format, weight_only_lane(shape.format), kActivation, kActivation};
    const WeightId id = cpu.weights().add(testing::random_matrix(random, shape.format, shape.n, shape.k));
    const Tensor x = normal(random, kActivation, tokens, shape.k);
    Tensor y(kActivation, tokens, shape.n);
    report.measure<LinearOp>(cpu, desc, {id}, {counts(tokens), x.view(), {}, y.view()}, tokens);
  }
}

void embed(Report& report, int32_t tokens) {
  Random random(2);
  Cpu cpu;
  const WeightId id = cpu.weights().add(testing::random_matrix(random, WF::kBf16, kVocab, kHidden));
  Tensor ids(DType::kI32, tokens, 1, 0), y(kActivation, tokens, kHidden);
  ids.fill([&](int64_t, int64_t) { return static_cast<float>(random.below(kVocab)); });
  report.measure<EmbedOp>(cpu, {kVocab, kHidden, WF::kBf16, kActivation}, {id}, {counts(tokens), ids.view(), y.view()},
                          tokens);
}

void rms_norm(Report& report, int32_t tokens) {
  for (const RmsNormDesc& desc : {RmsNormDesc{NormKind::kZeroCentred, kHidden, 1, 1e-6f, false, kActivation},
                                  RmsNormDesc{NormKind::kGated, 128, 4, 1e-6f, false, kActivation}}) {
    Random random(3);
    Cpu cpu;
    const WeightId id = cpu.weights().add(testing::random_matrix(random, WF::kBf16, 1, desc.width));
    const Tensor x = normal(random, kActivation, tokens, desc.width * desc.groups);
    const Tensor z = normal(random, kActivation, tokens, desc.width * desc.groups);
    Tensor y(kActivation, tokens, desc.width * desc.groups);
    report.measure<RmsNormOp>(cpu, desc, {id}, {counts(tokens), x.view(), z.view(), y.view()}, tokens);
  }
}

void silu_mul(Report& report, int32_t tokens) {
  Random random(4);
  Cpu cpu;
  const Tensor gate_up = normal(random, kActivation, tokens, 2 * kIntermediate);
  Tensor y(kActivation, tokens, kIntermediate);
  report.measure<SiluMulOp>(cpu, {kIntermediate, kActivation}, {}, {counts(tokens), gate_up.view(), y.view()}, tokens);
}

void router(Report& report, int32_t tokens) {
  Random random(5);
  Cpu cpu;
  const RouterDesc desc{kHidden, kExperts, kTopK, true, WF::kBf16, kActivation};
  const WeightId gate = cpu.weights().add(testing::random_matrix(random, WF::kBf16, kExperts, kHidden));
  const WeightId shared = cpu.weights().add(testing::random_matrix(random, WF::kBf16, 1, kHidden));
  const Tensor x = normal(random, kActivation, tokens, kHidden);
  Tensor ids(DType::kI32, tokens, kTopK), weights(DType::kF32, tokens, kTopK), scale(DType::kF32, tokens, 1);
  report.measure<RouterOp>(cpu, desc, {gate, shared},
                           {counts(tokens), x.view(), {}, ids.view(), weights.view(), scale.view(), {}}, tokens);
}

void experts(Report& report, int32_t tokens) {
  for (WF format : {WF::kNvfp4, WF::kBf16}) {
    Random random(6);
    Cpu cpu;
    const ExpertsDesc desc{kHidden, kIntermediate, kExperts, kTopK, format, weight_only_lane(format), kActivation};
    std::vector<OwnedMatrix> matrices;
    for (int32_t e = 0; e < kExperts; ++e) {
      matrices.push_back(testing::random_matrix(random, format, kIntermediate, kHidden));
      matrices.push_back(testing::random_matrix(random, format, kIntermediate, kHidden));
      matrices.push_back(testing::random_matrix(random, format, kHidden, kIntermediate));
    }
    const WeightId id = cpu.weights().add(std::move(matrices));
    const Tensor x = normal(random, kActivation, tokens, kHidden),
                 shared = normal(random, kActivation, tokens, kHidden);
    Tensor ids(DType::kI32, tokens, kTopK), weights(DType::kF32, tokens, kTopK), scale(DType::kF32, tokens, 1);
    ids.fill([](int64_t t, int64_t i) { return static_cast<float>((t * 5 + i * 3) % kExperts); });
    weights.fill([](int64_t, int64_t) { return 0.25f; });
    scale.fill([](int64_t, int64_t) { return 0.5f; });
    Tensor y(kActivation, tokens, kHidden);
    report.measure<ExpertsOp>(
        cpu, desc, {id},
        {counts(tokens), x.view(), ids.view(), weights.view(), shared.view(), scale.view(), x.view(), y.view()},
        tokens);
  }
}

// One line per part op; an op that keeps state or a cache makes it in its function.
using Bench = void (*)(Report&, int32_t tokens);
constexpr Bench kBenches[] = {embed, rms_norm, linear, router, experts, silu_mul};

}  // namespace
}  // namespace assay::ops

int main(int argc, char** argv) {
  const bool json = argc == 2 && std::string_view(argv[1]) == "--json";
  if (argc > 2 || (argc == 2 && !json)) {
    fmt::print(stderr, "usage: row_ratio [--json]\n");
    return 2;
  }
  assay::ops::Report report;
  for (const assay::ops::Bench bench : assay::ops::kBenches) {
    for (int32_t tokens : {1, 32}) bench(report, tokens);
  }
  json ? report.print_json() : report.print_table();
  return 0;
}

// Faults of embed, rms_norm, silu_mul and sample; and the list of all.
#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "fault.h"
#include "fault_tables.h"
#include "numeric/decode.h"
#include "ops/embed/embed.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/sample/sample.h"
#include "ops/silu_mul/silu_mul.h"

namespace assay::faults {
namespace {

template <class Op>
void add_after(std::vector<Entry>& list, const char* name, std::function<void(Run<Op>&)> change) {
  list.push_back(fault<Op>({name, [change](Run<Op>& run) {
                              if (run.after) change(run);
                            }}));
}

// Zero-centred rows anew, with sums of squares that keep eleven bits in each of eight lanes.
class NarrowSquares {
 public:
  void keep(const ops::WeightSource& source) {
    w_.resize(static_cast<size_t>(source.matrices[0].cols));
    numeric::decode_row(source.matrices[0], 0, w_.data());
  }
  void run(Run<ops::RmsNormOp>& run) const {
    const ops::ConstView& x = run.args.x;
    const bool plain = run.args.gather == nullptr && x.data != run.args.y.data;
    if (!plain || run.desc.kind != ops::NormKind::kZeroCentred) return;
    for (int64_t t = 0; t < x.rows; ++t) {
      for (int64_t first = 0; first < x.cols; first += run.desc.width) {
        const double mean = narrow_sum_of_squares(run, t, first) / static_cast<double>(run.desc.width);
        const double factor = 1 / std::sqrt(mean + run.desc.eps);
        for (int64_t i = 0; i < run.desc.width; ++i) {
          const double y = get(x, t, first + i) * factor * (1 + w_[static_cast<size_t>(i)]);
          set(run.args.y, t, first + i, static_cast<float>(y));
        }
      }
    }
  }

 private:
  static double narrow_sum_of_squares(const Run<ops::RmsNormOp>& run, int64_t t, int64_t first) {
    float lanes[8] = {};
    for (int64_t i = 0; i < run.desc.width; ++i) {
      const float value = get(run.args.x, t, first + i);
      float& lane = lanes[static_cast<size_t>(i) % std::size(lanes)];
      lane = std::bit_cast<float>(std::bit_cast<uint32_t>(lane + value * value) & 0xFFFFE000u);
    }
    return std::accumulate(std::begin(lanes), std::end(lanes), 0.0);
  }
  std::vector<double> w_;
};

void add_norm(std::vector<Entry>& list) {
  using ops::RmsNormOp;
  using N = Run<RmsNormOp>;
  list.push_back(fault<RmsNormOp>({"N59 w exchanged with 1 + w", {}, [](OwnWeight& own, size_t) {
                                     auto& m = own.source.matrices[0];
                                     auto* w = reinterpret_cast<numeric::Bf16*>(own.data(0));
                                     for (int64_t i = 0; i < m.cols; ++i)
                                       w[i] = numeric::bf16_from_float(numeric::bf16_to_float(w[i]) + 1);
                                   }}));
  list.push_back(
      fault<RmsNormOp>({"N59 eps of another model", {}, {}, false, [](ops::RmsNormDesc& desc) { desc.eps = 1e-3f; }}));
  list.push_back(fault<RmsNormOp>({"N59 gate without silu", [](N& run) {
                                     if (!run.after || !run.args.z) return;
                                     for (int64_t i = 0; i < run.args.y.cols; ++i) {
                                       const float z = get(run.args.z, 0, i);
                                       set(run.args.y, 0, i, get(run.args.y, 0, i) * (1 + std::exp(-z)));
                                     }
                                   }}));
  list.push_back(fault<RmsNormOp>({"rows not gathered", [](N& run) {
                                     if (!run.after) run.args.gather = nullptr;
                                   }}));
  list.push_back(fault<RmsNormOp>({"gate of the row before", [](N& run) {
                                     if (!run.after && run.args.z && run.args.z.rows > 1)
                                       run.args.z = run.args.z.slice(0, 1), run.args.z.stride = 0,
                                       run.args.z.rows = run.args.y.rows;
                                   }}));
  list.push_back(fault<RmsNormOp>(
      {"N64 a residual that is not finite is not flagged", [](N& run) { run.launch.flags = nullptr; }}));
  add_after<RmsNormOp>(list, "a flag where a square overflows", [](N& run) {
    for (int64_t i = 0; run.desc.kind == ops::NormKind::kZeroCentred && i < run.args.x.rows * run.args.x.cols; ++i) {
      const float value = get(run.args.x, i / run.args.x.cols, i % run.args.x.cols);
      const bool read = run.args.gather == nullptr && run.args.x.data != run.args.y.data;
      if (read && std::isfinite(value) && !std::isfinite(value * value))
        run.launch.flags->words[run.launch.layer] |= ops::Sentinel::kNonFiniteResidual;
    }
  });
  add_after<RmsNormOp>(list, "a square that overflows gives NaN", [](N& run) {
    for (int64_t t = 0; t < run.args.x.rows && !run.args.gather; ++t) {
      if (std::abs(get(run.args.x, t, run.args.x.cols - 1)) > 1e20f) scale(run.args.y.slice(t, 1), std::nanf(""));
    }
  });
  const auto narrow = std::make_shared<NarrowSquares>();
  list.push_back(fault<RmsNormOp>({"sums of squares keep 11 bits",
                                   [narrow](N& run) {
                                     if (run.after) narrow->run(run);
                                   },
                                   [narrow](OwnWeight& own, size_t) { narrow->keep(own.source); }}));
  add_after<RmsNormOp>(list, "1 % off where rows have no pads", [](N& run) {
    if (run.args.x.stride == run.args.x.cols) scale(run.args.y, 1.01f);
  });
  add_after<RmsNormOp>(list, "x is changed once it was read", [](N& run) {
    const ops::View x(const_cast<void*>(run.args.x.data), run.args.x.dtype, 1, run.args.x.cols, run.args.x.stride);
    if (run.args.x.data != run.args.y.data) set(x, 0, 0, -get(x, 0, 0) - 1);
  });
  add_after<RmsNormOp>(list, "writes one element past the last row", [](N& run) {
    const ops::View& y = run.args.y;
    const ops::View wide(y.data, y.dtype, y.rows, y.cols + 1, y.stride);
    set(wide, y.rows - 1, y.cols, 1);
  });
  add_after<RmsNormOp>(list, "a flag of another layer", [](N& run) {
    uint32_t* words = run.launch.flags->words + run.launch.layer;
    words[1] |= words[0];
  });
  add_after<RmsNormOp>(list, "1 % off on the last 16 values",
                       [](N& run) { scale(run.args.y, 1.01f, run.args.y.cols - 16); });
  add_after<RmsNormOp>(list, "tiny rows are zero", [](N& run) {
    for (int64_t t = 0; t < run.args.y.rows; ++t) {
      if (std::abs(get(run.args.y, t, 0)) < 0.01f) scale(run.args.y.slice(t, 1), 0);
    }
  });
}

void add_sample(std::vector<Entry>& list) {
  using ops::SampleOp;
  using S = Run<SampleOp>;
  const auto each = [&](const char* name,
                        std::function<void(const ops::SampleParams&, ops::SampleResult&, const ops::ConstView& logits,
                                           int64_t row, const ops::SampleDesc&)>
                            change) {
    add_after<SampleOp>(list, name, [change](S& run) {
      for (int32_t r = 0; r < run.args.rows; ++r)
        change(run.args.params[r], run.args.results[r], run.args.logits, r, run.desc);
    });
  };
  each("N64 a row of NaN gives token 0", [](const auto&, ops::SampleResult& result, const auto&, int64_t, const auto&) {
    if (result.numerical_error != 0) result.numerical_error = 0, result.token = 0;
  });
  each("N64 padding rows are drawn",
       [](const auto& params, ops::SampleResult& result, const auto&, int64_t, const auto& desc) {
         if (params.temperature <= 0 && params.target < 0 && result.token >= 0) result.token = desc.vocab - 1;
       });
  list.push_back(fault<SampleOp>({"N64 every row of the head may be drawn", {}, {}, false, [](ops::SampleDesc& desc) {
                                    desc.real_vocab = desc.vocab;
                                  }}));
  const auto draw = std::make_shared<ops::CaseRandom>(9);
  list.push_back(fault<SampleOp>({"N64 one draw in 500",
                                  [draw](S& run) {
                                    if (!run.after) return;
                                    for (int32_t r = 0; r < run.args.rows; ++r) {
                                      auto& result = run.args.results[r];
                                      if (result.token >= 0 && draw->below(500) == 0)
                                        result.token = (result.token + 1) % 7;
                                    }
                                  },
                                  {},
                                  true}));
  each("ties go to the highest id",
       [](const auto& params, ops::SampleResult& result, const auto& logits, int64_t row, const auto& desc) {
         if (params.temperature > 0 || params.target >= 0 || result.token < 0) return;
         for (int32_t id = desc.real_vocab - 1; id > result.token; --id) {
           if (get(logits, row, id) == get(logits, row, result.token)) {
             result.token = id;
             break;
           }
         }
       });
  each("log-probability after temperature",
       [](const auto& params, ops::SampleResult& result, const auto&, int64_t, const auto&) {
         if (params.temperature > 0) result.logprob /= params.temperature * 1.1f;
       });
  each("log-probabilities over real rows only",
       [](const auto&, ops::SampleResult& result, const auto&, int64_t, const auto&) { result.logprob += 0.01f; });
  each("one alternative fewer", [](const auto&, ops::SampleResult& result, const auto&, int64_t, const auto&) {
    if (result.top_count > 1) --result.top_count;
  });
  each("greedy whatever the temperature",
       [](const auto& params, ops::SampleResult& result, const auto& logits, int64_t row, const auto& desc) {
         if (params.temperature <= 0 || params.target >= 0 || result.token < 0) return;
         for (int32_t id = 0; id < desc.real_vocab; ++id) {
           if (get(logits, row, id) > get(logits, row, result.token)) result.token = id;
         }
       });
  list.push_back(fault<SampleOp>({"N64 bad logits are not flagged", [](S& run) { run.launch.flags = nullptr; }}));
  list.push_back(fault<SampleOp>(
      {"seed of the token before", [params = std::make_shared<HostVector<ops::SampleParams>>()](S& run) {
         if (run.after) return;
         params->assign(run.args.params, run.args.params + run.args.rows);
         for (auto& p : *params) ++p.counter;
         run.args.params = params->data();
       }}));
  list.push_back(
      fault<SampleOp>({"top_p ignored", [params = std::make_shared<HostVector<ops::SampleParams>>()](S& run) {
                         if (run.after) return;
                         params->assign(run.args.params, run.args.params + run.args.rows);
                         for (auto& p : *params) p.top_p = 1;
                         run.args.params = params->data();
                       }}));
}

}  // namespace

void add_small_faults(std::vector<Entry>& list) {
  using ops::EmbedOp;
  using ops::SiluMulOp;
  add_after<EmbedOp>(list, "the last id gives another row", [](Run<EmbedOp>& run) {
    for (int64_t t = 0; t < run.args.y.rows; ++t) {
      if (run.args.ids.row<int32_t>(t)[0] == run.desc.vocab - 1) nudge(run.args.y, t, 3, 1);
    }
  });
  add_norm(list);
  add_after<SiluMulOp>(list, "N07 gate and up exchanged", [](Run<SiluMulOp>& run) {
    for (int64_t i = 0; i < run.args.y.cols; ++i) {
      const float gate = get(run.args.gate_up, 0, run.desc.width + i), up = get(run.args.gate_up, 0, i);
      set(run.args.y, 0, i, gate / (1 + std::exp(-gate)) * up);
    }
  });
  add_after<SiluMulOp>(list, "N50 clamped at 7", [](Run<SiluMulOp>& run) {
    for (int64_t t = 0; t < run.args.y.rows; ++t) {
      for (int64_t i = 0; i < run.args.y.cols; ++i)
        set(run.args.y, t, i, std::clamp(get(run.args.y, t, i), -7.0f, 7.0f));
    }
  });
  add_sample(list);
}

}  // namespace assay::faults

// Faults of linear, experts and router: formats, layouts, tiles, shapes, routing.
#include <algorithm>
#include <cmath>
#include <map>

#include "fault.h"
#include "fault_tables.h"
#include "numeric/decode.h"
#include "numeric/nvfp4.h"
#include "ops/experts/experts.h"
#include "ops/linear/linear.h"
#include "ops/router/router.h"

namespace assay::faults {
namespace {

using ops::ExpertsOp;
using ops::LinearOp;
using ops::RouterOp;
using L = Run<LinearOp>;
using E = Run<ExpertsOp>;
using R = Run<RouterOp>;

// Every block scale from where `from` says.
template <class From>
void move_scales(OwnWeight& own, const From& from) {
  for (size_t m = 0; m < own.source.matrices.size(); ++m) {
    const numeric::EncodedMatrix before = own.source.matrices[m];
    if (before.scales.empty()) continue;
    std::byte* scales = own.scales(m);
    const int64_t blocks = before.cols / numeric::kNvfp4Block, count = before.rows * blocks;
    for (int64_t i = 0; i < count; ++i)
      scales[i] = before.scales[static_cast<size_t>(from(i / blocks, i % blocks, blocks, count))];
  }
}

void swap_nibbles(OwnWeight& own, size_t) {
  for (size_t m = 0; m < own.source.matrices.size(); ++m) {
    if (own.source.matrices[m].scales.empty()) continue;
    const size_t count = own.source.matrices[m].data.size();
    std::byte* data = own.data(m);
    for (size_t i = 0; i < count; ++i) data[i] = (data[i] << 4) | (data[i] >> 4);
  }
}

void swizzled(OwnWeight& own, size_t) {
  move_scales(own, [](int64_t row, int64_t block, int64_t blocks, int64_t count) {
    const int64_t tiles = (blocks + 3) / 4;
    return ((row / 128 * tiles + block / 4) * 512 + row % 32 * 16 + row % 128 / 32 * 4 + block % 4) % count;
  });
}

// Bytes in tiles of 16 rows by 16 bytes, as a row of another layout has them packed, read as the file has them.
void packed_for_another(OwnWeight& own, size_t) {
  constexpr int64_t kRows = 16, kBytes = 16;
  for (size_t m = 0; m < own.source.matrices.size(); ++m) {
    const std::span<const std::byte> before = own.source.matrices[m].data;
    const int64_t row_bytes = std::ssize(before) / own.source.matrices[m].rows, tiles = row_bytes / kBytes;
    std::byte* data = own.data(m);
    for (int64_t at = 0; at < std::ssize(before) / (kRows * row_bytes) * kRows * row_bytes; ++at) {
      const int64_t panel = at / (kRows * row_bytes) * kRows, in_panel = at % (kRows * row_bytes);
      const int64_t tile = in_panel / (kRows * kBytes), row = in_panel / kBytes % kRows;
      if (tile >= tiles) continue;
      data[at] = before[static_cast<size_t>((panel + row) * row_bytes + tile * kBytes + in_panel % kBytes)];
    }
  }
}

void next_scale(OwnWeight& own, size_t) {
  move_scales(own,
              [](int64_t row, int64_t block, int64_t blocks, int64_t) { return row * blocks + (block + 1) % blocks; });
}

void power_of_two_scales(OwnWeight& own, size_t) {
  for (size_t m = 0; m < own.source.matrices.size(); ++m) {
    const size_t count = own.source.matrices[m].scales.size();
    if (count == 0) continue;
    std::byte* scales = own.scales(m);
    for (size_t i = 0; i < count; ++i) {
      const int code = std::to_integer<int>(scales[i]);
      if (code % 8 != 0) scales[i] = static_cast<std::byte>((code / 8 + 1) * 8);
    }
  }
}

// Block scales below the smallest normal value read as zero.
void flushed_scales(OwnWeight& own, size_t) {
  for (size_t m = 0; m < own.source.matrices.size(); ++m) {
    const size_t count = own.source.matrices[m].scales.size();
    if (count == 0) continue;
    std::byte* scales = own.scales(m);
    for (size_t i = 0; i < count; ++i) {
      if ((scales[i] & std::byte{0x78}) == std::byte{0}) scales[i] = std::byte{0};
    }
  }
}

bool quantised(const OwnWeight& own) { return !own.source.matrices[0].scales.empty(); }

// x through change(token, column, value).
template <class Op, class Change>
void change_inputs(Run<Op>& run, const Change& change) {
  if (run.after) return;
  const ops::ConstView& x = run.args.x;
  run.scratch.emplace_back(static_cast<size_t>(x.rows * x.cols));
  const ops::View copy(run.scratch.back().data(), x.dtype, x.rows, x.cols);
  for (int64_t t = 0; t < x.rows; ++t) {
    for (int64_t k = 0; k < x.cols; ++k) set(copy, t, k, change(t, k, get(x, t, k)));
  }
  run.args.x = copy;
}

// To the nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6 times a sixth of the largest of its block of 16.
template <class Op>
void four_bit_inputs(Run<Op>& run) {
  const ops::ConstView x = run.args.x;
  change_inputs(run, [&](int64_t t, int64_t k, float value) {
    float most = 0;
    for (int64_t i = k / 16 * 16; i < std::min(k / 16 * 16 + 16, x.cols); ++i)
      most = std::max(most, std::abs(get(x, t, i)));
    if (most == 0) return value;
    float nearest = 0;
    for (const float code : {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f}) {
      const float candidate = std::copysign(code * most / 6, value);
      if (std::abs(candidate - value) < std::abs(nearest - value)) nearest = candidate;
    }
    return nearest;
  });
}

// Keeps a tile of the output as it was before the run.
void leave_tile(L& run, int64_t first, int64_t count) {
  const ops::View& y = run.args.y;
  if (first + count > y.cols) return;
  if (!run.after) {
    HostVector<int32_t> kept;
    for (int64_t t = 0; t < y.rows; ++t) {
      for (int64_t n = first; n < first + count; ++n) {
        kept.push_back(y.dtype == DType::kF32 ? std::bit_cast<int32_t>(y.row<float>(t)[n])
                                              : y.row<numeric::Bf16>(t)[n].bits);
      }
    }
    run.scratch.push_back(std::move(kept));
    return;
  }
  auto kept = run.scratch[0].begin();
  for (int64_t t = 0; t < y.rows; ++t) {
    for (int64_t n = first; n < first + count; ++n, ++kept) {
      if (y.dtype == DType::kF32) {
        y.row<float>(t)[n] = std::bit_cast<float>(*kept);
      } else {
        y.row<numeric::Bf16>(t)[n].bits = static_cast<uint16_t>(*kept);
      }
    }
  }
}

// The inputs of the first run with each address, whatever is there by now.
void keep_inputs(L& run) {
  static std::map<const void*, std::vector<float>> kept;
  if (run.after) return;
  if (run.index == 0) kept.clear();
  const ops::ConstView x = run.args.x;
  std::vector<float>& values = kept[x.data];
  if (values.empty()) {
    for (int64_t i = 0; i < x.rows * x.cols; ++i) values.push_back(get(x, i / x.cols, i % x.cols));
  }
  change_inputs(run, [&](int64_t t, int64_t k, float) { return values[static_cast<size_t>(t * x.cols + k)]; });
}

// Down projections anew from their weights, with narrow sums, of up to eight tokens.
class NarrowDown {
 public:
  void keep(const ops::WeightSource& source) { matrices_ = source.matrices; }
  void run(E& run) const {
    const auto& args = run.args;
    if (args.residual || args.shared || args.y.rows > 8) return;
    for (int64_t t = 0; t < args.y.rows; ++t) {
      std::vector<float> sums(static_cast<size_t>(run.desc.hidden));
      for (int64_t i = 0; i < args.ids.cols; ++i) {
        const auto expert = static_cast<size_t>(args.ids.row<int32_t>(t)[i]);
        const std::vector<float> h = hidden(run, t, 3 * expert);
        std::vector<float> w(h.size());
        for (size_t n = 0; n < sums.size(); ++n) {
          numeric::decode_row(matrices_[3 * expert + 2], static_cast<int64_t>(n), w.data());
          float sum = 0;
          for (size_t j = 0; j < h.size(); ++j) sum = narrow_sum(sum, w[j] * h[j]);
          sums[n] += get(args.weights, t, i) * sum;
        }
      }
      for (size_t n = 0; n < sums.size(); ++n) set(args.y, t, static_cast<int64_t>(n), sums[n]);
    }
  }

 private:
  std::vector<float> hidden(E& run, int64_t t, size_t gate) const {
    std::vector<float> h;
    std::vector<double> g(static_cast<size_t>(run.desc.hidden)), u(g);
    for (int64_t j = 0; j < run.desc.intermediate; ++j) {
      numeric::decode_row(matrices_[gate], j, g.data());
      numeric::decode_row(matrices_[gate + 1], j, u.data());
      double gate_sum = 0, up_sum = 0;
      for (size_t k = 0; k < g.size(); ++k) {
        const double x = get(run.args.x, t, static_cast<int64_t>(k));
        gate_sum += g[k] * x;
        up_sum += u[k] * x;
      }
      const double value = gate_sum / (1 + std::exp(-gate_sum)) * up_sum;
      h.push_back(static_cast<float>(ops::round_to_dtype(run.desc.activation, value)));
    }
    return h;
  }
  std::vector<numeric::EncodedMatrix> matrices_;
};

// ids as an array of its own that may be changed.
ops::View own_ids(E& run) {
  const ops::ConstView& ids = run.args.ids;
  HostVector<int32_t> copy;
  for (int64_t t = 0; t < ids.rows; ++t) copy.insert(copy.end(), ids.row<int32_t>(t), ids.row<int32_t>(t) + ids.cols);
  run.scratch.push_back(std::move(copy));
  const ops::View view(run.scratch.back().data(), DType::kI32, ids.rows, ids.cols);
  run.args.ids = view;
  return view;
}

// Calls change(token) for every token of an expert, after the run.
template <class Change>
void for_tokens_of(E& run, int32_t expert, const Change& change) {
  if (!run.after) return;
  for (int64_t t = 0; t < run.args.ids.rows; ++t) {
    const int32_t* ids = run.args.ids.row<int32_t>(t);
    if (std::find(ids, ids + run.args.ids.cols, expert) != ids + run.args.ids.cols) change(t);
  }
}

}  // namespace

void add_linear_faults(std::vector<Entry>& list) {
  const auto add = [&](Fault<LinearOp> entry) { list.push_back(fault<LinearOp>(std::move(entry))); };
  const auto after = [&](std::string name, std::function<void(L&)> change, bool rare = false) {
    add({std::move(name),
         [change](L& run) {
           if (run.after) change(run);
         },
         {},
         rare});
  };
  add({"N03 scales read as 128x4 tiles", {}, swizzled});
  add({"N04 weights packed for another row", {}, packed_for_another});
  add({"N01 global scale inverted", {}, [](OwnWeight& own, size_t) {
         for (auto& m : own.source.matrices) m.global_scale = 1 / m.global_scale;
       }});
  add({"N06 largest global scale for all parts", {}, [](OwnWeight& own, size_t) {
         float most = 0;
         for (auto& m : own.source.matrices) most = std::max(most, m.global_scale);
         for (auto& m : own.source.matrices) m.global_scale = most;
       }});
  add({"N17 only the first part of a fused weight is loaded", {}, [](OwnWeight& own, size_t) {
         for (size_t m = 1; m < own.source.matrices.size(); ++m) {
           const size_t count = own.source.matrices[m].data.size();
           std::fill_n(own.data(m), count, std::byte{0});
         }
       }});
  add({"N19 one row of a part taken from its neighbour", {}, [](OwnWeight& own, size_t) {
         auto& m = own.source.matrices[0];
         const auto row = m.data.size() / static_cast<size_t>(m.rows);
         std::byte* data = own.data(0);
         if (m.rows > 1) std::copy_n(data, row, data + row);
       }});
  after("N41 output not scaled", [](L& run) { scale(run.args.y, 256); });
  after("1.08 on half of a fused projection", [](L& run) { scale(run.args.y, 1.08f, run.args.y.cols / 2); });
  after("1.02 on 64 outputs", [](L& run) { scale(run.args.y, 1.02f, 0, 64); });
  after("N45 1.01 on everything", [](L& run) { scale(run.args.y, 1.01f); });
  add({"N27 a tile of 64 outputs is not written",
       [](L& run) { leave_tile(run, run.desc.n >= 128 ? 64 : 0, std::min<int64_t>(run.desc.n, 64)); }});
  add({"N27 the last output is not written for odd token counts", [](L& run) {
         if (run.args.y.rows % 2 == 1) leave_tile(run, run.desc.n - 1, 1);
       }});
  after("N30 zero for 16 to 1536 tokens", [](L& run) {
    if (run.args.y.rows >= 16) scale(run.args.y, 0);
  });
  after("N29 the last token is wrong for 17 to 31 tokens", [](L& run) {
    const int64_t t = run.args.y.rows - 1;
    if (t + 1 >= 17 && t + 1 <= 31) scale(run.args.y.slice(t, 1), 0.9f);
  });
  after("N28 tokens from 32 on get the output of the one before", [](L& run) {
    for (int64_t t = run.args.y.rows - 1; t >= 32; --t) {
      for (int64_t n = 0; n < run.args.y.cols; ++n) set(run.args.y, t, n, get(run.args.y, t - 1, n));
    }
  });
  add({"N32 the last block of 16 inputs is left out", [](L& run) {
         change_inputs(run, [&](int64_t, int64_t k, float value) { return k >= run.desc.k - 16 ? 0 : value; });
       }});
  add({"N34 inputs beyond the last multiple of 64 are stale", [](L& run) {
         if (run.desc.k % 64 == 0) return;
         change_inputs(run, [&](int64_t, int64_t k, float value) { return k >= run.desc.k / 64 * 64 ? 1 : value; });
       }});
  add({"N21 activations rounded to four bits", four_bit_inputs<LinearOp>});
  add({"N38 subnormal block scales are zero", {}, flushed_scales});
  after("N36 a padding row enters the last token", [](L& run) {
    const int64_t t = run.args.y.rows - 1;
    const ops::ConstView beyond(
        run.args.x.row<char>(0) + (t + 1) * run.args.x.stride * static_cast<int64_t>(dtype_bytes(run.args.x.dtype)),
        run.args.x.dtype, 1, run.args.x.cols, run.args.x.stride);
    set(run.args.y, t, 0, get(run.args.y, t, 0) + 0 * get(beyond, 0, 0));
  });
  for (const int64_t tokens : {4, 6, 8, 13, 22, 32}) {
    after(fmt::format("the last token is wrong for exactly {} tokens", tokens), [tokens](L& run) {
      if (run.args.y.rows == tokens) scale(run.args.y.slice(tokens - 1, 1), 0.9f);
    });
  }
  after("1 % off where rows have no pads", [](L& run) {
    if (run.args.x.stride == run.args.x.cols) scale(run.args.y, 1.01f);
  });
  add({"keeps what it first read at an address", keep_inputs});
  after("x is changed once it was read", [](L& run) {
    const ops::View x(const_cast<void*>(run.args.x.data), run.args.x.dtype, 1, run.args.x.cols);
    set(x, 0, 0, -get(x, 0, 0) - 1);
  });
  after("writes one byte past the workspace",
        [](L& run) { static_cast<std::byte*>(run.launch.workspace.data)[run.launch.workspace.cols] ^= std::byte{1}; });
  after("wrong in the second chain alone", [uses = std::make_shared<std::map<const void*, int>>()](L& run) {
    if (run.index == 0) uses->clear();
    if (++(*uses)[run.args.y.data] == 3) nudge(run.args.y, 0, 0, 1);
  });
  after("writes one element past the row", [](L& run) {
    const ops::View wide(run.args.y.data, run.args.y.dtype, run.args.y.rows, run.args.y.stride, run.args.y.stride);
    set(wide, 0, run.args.y.cols, 0);
  });
  after("a residual is added twice", [](L& run) {
    if (run.args.residual && run.args.residual.data != run.args.y.data) {
      for (int64_t n = 0; n < run.args.y.cols; ++n)
        set(run.args.y, 0, n, get(run.args.y, 0, n) + get(run.args.residual, 0, n));
    }
  });
  after("rounds every second output away from zero", [](L& run) {
    for (int64_t t = 0; t < run.args.y.rows; ++t) {
      for (int64_t n = 0; n < run.args.y.cols; n += 2)
        nudge(run.args.y, t, n, run.args.y.dtype == DType::kF32 ? 64 : 1);
    }
  });
  after("N27 wrong on the second use of a workspace", [](L& run) {
    if (run.index % 2 == 1) nudge(run.args.y, 0, 0, 1);
  });
  after("NaN in one output of one token",
        [](L& run) { set(run.args.y, run.args.y.rows / 2, run.args.y.cols / 2, std::nanf("")); });
  after(
      "N48 a race: one element of one run in 50",
      [](L& run) {
        if (run.index % 50 == 49) nudge(run.args.y, 0, 3, 1);
      },
      true);
  after(
      "N48 a race: one element of one run in 500",
      [](L& run) {
        if (run.index % 500 == 499) nudge(run.args.y, 0, 3, 1);
      },
      true);
  add({"N27 one row in 2000 is wrong",
       [rows = std::make_shared<int64_t>(0)](L& run) {
         if (!run.after) return;
         for (int64_t t = 0; t < run.args.y.rows; ++t) {
           if (++*rows % 2000 == 0) scale(run.args.y.slice(t, 1), 1.5f);
         }
       },
       {},
       true});
}

void add_experts_faults(std::vector<Entry>& list) {
  const auto add = [&](Fault<ExpertsOp> entry) { list.push_back(fault<ExpertsOp>(std::move(entry))); };
  const auto per_expert = [&](const char* name, std::function<void(OwnWeight&, size_t first)> change) {
    add({name, {}, [change](OwnWeight& own, size_t) {
           for (size_t e = 0; e < own.source.matrices.size(); e += 3) change(own, e);
         }});
  };
  add({"N03 scales read as 128x4 tiles", {}, swizzled});
  add({"N04 weights packed for another row", {}, packed_for_another});
  add({"nibbles swapped", {}, swap_nibbles});
  add({"scale of the next block", {}, next_scale});
  add({"N23 scales rounded up to powers of two", {}, power_of_two_scales});
  add({"N38 subnormal block scales are zero", {}, flushed_scales});
  add({"N21 activations rounded to four bits", four_bit_inputs<ExpertsOp>});
  add({"terms 500 times smaller than others are lost", [](E& run) {
         const ops::ConstView x = run.args.x;
         change_inputs(run, [&](int64_t t, int64_t, float value) {
           float most = 0;
           for (int64_t i = 0; i < x.cols; ++i) most = std::max(most, std::abs(get(x, t, i)));
           return std::abs(value) < most / 500 ? 0 : value;
         });
       }});
  per_expert("N07 gate and up swapped",
             [](OwnWeight& own, size_t e) { std::swap(own.source.matrices[e], own.source.matrices[e + 1]); });
  per_expert("N07 scales of gate and up swapped", [](OwnWeight& own, size_t e) {
    if (quantised(own)) std::swap(own.source.matrices[e].scales, own.source.matrices[e + 1].scales);
  });
  per_expert("N07 codes of gate and up swapped",
             [](OwnWeight& own, size_t e) { std::swap(own.source.matrices[e].data, own.source.matrices[e + 1].data); });
  per_expert("N05 up has gate's global scale", [](OwnWeight& own, size_t e) {
    own.source.matrices[e + 1].global_scale = own.source.matrices[e].global_scale;
  });
  per_expert("N25 down's global scale left out",
             [](OwnWeight& own, size_t e) { own.source.matrices[e + 2].global_scale = 1; });
  per_expert("1.08 on up", [](OwnWeight& own, size_t e) { own.source.matrices[e + 1].global_scale *= 1.08f; });
  add({"one expert is 5 % off", {}, [](OwnWeight& own, size_t) { own.source.matrices[2].global_scale *= 1.05f; }});
  add({"one expert is dead", {}, [](OwnWeight& own, size_t) { own.source.matrices[3 * 2 + 2].global_scale = 0; }});
  add({"one block of one expert is wrong", {}, [](OwnWeight& own, size_t) {
         if (quantised(own)) own.scales(1)[1] ^= std::byte{8};
       }});
  add({"N18 experts numbered from one", [](E& run) {
         if (run.after) return;
         const ops::View ids = own_ids(run);
         for (int64_t t = 0; t < ids.rows; ++t) {
           for (int64_t i = 0; i < ids.cols; ++i)
             ids.row<int32_t>(t)[i] = (ids.row<int32_t>(t)[i] + 1) % run.desc.experts;
         }
       }});
  add({"N08 scales not set: nothing comes out", [](E& run) {
         if (run.after && !run.args.residual) scale(run.args.y, 0);
       }});
  add({"an expert with exactly 17 tokens is wrong", [](E& run) {
         for (int32_t e = 0; e < run.desc.experts; ++e) {
           int64_t count = 0;
           for_tokens_of(run, e, [&](int64_t) { ++count; });
           if (count == 17) for_tokens_of(run, e, [&](int64_t t) { scale(run.args.y.slice(t, 1), 1.1f); });
         }
       }});
  add({"N36 all tokens on one expert: the last is wrong", [](E& run) {
         int64_t count = 0;
         const int32_t first = run.args.ids.row<int32_t>(0)[0];
         for_tokens_of(run, first, [&](int64_t) { ++count; });
         if (run.after && count == run.args.y.rows && count > 4) scale(run.args.y.slice(count - 1, 1), 0.5f);
       }});
  add({"N47 sums of two runs differ in one bit", [](E& run) {
         if (run.after && run.index % 2 == 1) nudge(run.args.y, 0, 1, 1);
       }});
  const auto draw = std::make_shared<ops::CaseRandom>(3);
  add({"N46 one element of one run in 100",
       [draw](E& run) {
         if (run.after && draw->below(100) == 0) nudge(run.args.y, run.args.y.rows - 1, 0, 1);
       },
       {},
       true});
  const auto narrow = std::make_shared<NarrowDown>();
  add({"sums of the down projection keep 16 bits",
       [narrow](E& run) {
         if (run.after) narrow->run(run);
       },
       [narrow](OwnWeight& own, size_t) { narrow->keep(own.source); }});
  add({"takes its workspace for zeros", [](E& run) {
         const ops::View& workspace = run.launch.workspace;
         if (workspace.cols < 4) return;
         if (!run.after) {
           run.scratch.emplace_back(1);
           std::memcpy(run.scratch.back().data(), workspace.data, sizeof(float));
         } else {
           set(run.args.y, 0, 0, get(run.args.y, 0, 0) + std::bit_cast<float>(run.scratch.back()[0]));
         }
       }});
  add({"shared expert left out", [](E& run) {
         if (!run.after) run.args.shared = {};
       }});
  add({"shared expert without its gate", [](E& run) {
         if (run.after || !run.args.shared) return;
         HostVector<int32_t> ones(static_cast<size_t>(run.args.shared.rows), std::bit_cast<int32_t>(1.0f));
         run.scratch.push_back(std::move(ones));
         run.args.shared_scale = ops::ConstView(run.scratch.back().data(), DType::kF32, run.args.shared.rows, 1);
       }});
  add({"N49 experts weighted alike", [](E& run) {
         if (run.after) return;
         const size_t count = static_cast<size_t>(run.args.weights.rows * run.args.weights.cols);
         run.scratch.emplace_back(count, std::bit_cast<int32_t>(1.0f / static_cast<float>(run.desc.top_k)));
         run.args.weights =
             ops::ConstView(run.scratch.back().data(), DType::kF32, run.args.weights.rows, run.args.weights.cols);
       }});
}

// Logits anew with narrow sums, of up to 32 tokens.
class NarrowLogits {
 public:
  void keep(const ops::WeightSource& source) { matrices_ = source.matrices; }
  void run(R& run) const {
    std::vector<float> w(static_cast<size_t>(run.desc.hidden));
    for (int64_t e = 0; run.args.logits.rows <= 32 && e < run.desc.experts; ++e) {
      numeric::decode_row(matrices_.front(), e, w.data());
      for (int64_t t = 0; t < run.args.logits.rows; ++t) {
        float sum = 0;
        for (size_t k = 0; k < w.size(); ++k) sum = narrow_sum(sum, w[k] * get(run.args.x, t, static_cast<int64_t>(k)));
        set(run.args.logits, t, e, static_cast<float>(ops::round_to_dtype(run.desc.activation, sum)));
      }
    }
  }

 private:
  std::vector<numeric::EncodedMatrix> matrices_;
};

void add_router_faults(std::vector<Entry>& list) {
  const auto narrow = std::make_shared<NarrowLogits>();
  list.push_back(fault<RouterOp>({"sums of logits keep 16 bits",
                                  [narrow](R& run) {
                                    if (run.after && run.args.logits) narrow->run(run);
                                  },
                                  [narrow](OwnWeight& own, size_t which) {
                                    if (which == 0) narrow->keep(own.source);
                                  }}));
  const auto after = [&](const char* name, std::function<void(R&)> change) {
    list.push_back(fault<RouterOp>({name, [change](R& run) {
                                      if (run.after) change(run);
                                    }}));
  };
  after("N49 weights not renormalised", [](R& run) { scale(run.args.weights, 0.9f); });
  after("N49 logits as weights", [](R& run) {
    for (int64_t t = 0; t < run.args.ids.rows; ++t) {
      for (int64_t i = 0; i < run.args.ids.cols; ++i)
        set(run.args.weights, t, i, get(run.args.logits, t, run.args.ids.row<int32_t>(t)[i]));
    }
  });
  after("one expert fewer", [](R& run) {
    for (int64_t t = 0; t < run.args.ids.rows; ++t) set(run.args.weights, t, run.args.ids.cols - 1, 0);
  });
  after("ties go to the highest index", [](R& run) {
    if (run.args.forced_ids) return;
    for (int64_t t = 0; t < run.args.ids.rows; ++t) {
      int32_t* ids = run.args.ids.row<int32_t>(t);
      for (int32_t e = 0; e < run.desc.experts; ++e) {
        if (get(run.args.logits, t, e) == get(run.args.logits, t, ids[0])) ids[0] = e;
      }
    }
  });
  after("forced experts ignored", [](R& run) {
    if (run.args.forced_ids)
      set(run.args.ids, 0, 0, static_cast<float>((run.args.ids.row<int32_t>(0)[0] + 1) % run.desc.experts));
  });
  after("N15 gate of another format: logits 2 % off", [](R& run) { scale(run.args.logits, 1.02f); });
  after("shared gate without its sigmoid", [](R& run) {
    if (run.args.shared_scale) scale(run.args.shared_scale, 1.5f);
  });
  after("N64 weights of infinite logits are ordinary numbers", [](R& run) {
    for (int64_t t = 0; t < run.args.weights.rows; ++t) {
      for (int64_t i = 0; i < run.args.weights.cols; ++i) {
        if (std::isnan(get(run.args.weights, t, i)))
          set(run.args.weights, t, i, 1.0f / static_cast<float>(run.desc.top_k));
      }
    }
  });
}

}  // namespace assay::faults

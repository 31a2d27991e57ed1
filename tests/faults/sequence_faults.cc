// Faults of ops that know sequences: qk_norm_rope, attention, conv_gates, gated_delta.
#include <algorithm>
#include <cmath>

#include "fault.h"
#include "fault_tables.h"
#include "ops/attention/attention.h"
#include "ops/conv_gates/conv_gates.h"
#include "ops/gated_delta/gated_delta.h"
#include "ops/qk_norm_rope/qk_norm_rope.h"

namespace assay::faults {
namespace {

using ops::AttentionOp;
using ops::ConvGatesOp;
using ops::GatedDeltaOp;
using ops::QkNormRopeOp;

// A changed copy of an integer array of the batch.
template <class Op, class Change>
const int32_t* changed(Run<Op>& run, const int32_t* array, int64_t count, const Change& change) {
  HostVector<int32_t> copy(array, array + count);
  for (int64_t i = 0; i < count; ++i) copy[static_cast<size_t>(i)] = change(copy[static_cast<size_t>(i)], i);
  run.scratch.push_back(std::move(copy));
  return run.scratch.back().data();
}

template <class Op, class Change>
void change_positions(Run<Op>& run, const Change& change) {
  if (run.after) return;
  ops::BatchView& batch = run.args.batch;
  batch.positions = changed(run, batch.positions, batch.tokens.total, [&](int32_t p, int64_t) { return change(p); });
}

template <class Op, class Change>
void change_pages(Run<Op>& run, const Change& change) {
  if (run.after) return;
  ops::BatchView& batch = run.args.batch;
  const int64_t count = int64_t{batch.sequences} * batch.page_table_stride;
  batch.page_table = changed(run, batch.page_table, count, [&](int32_t page, int64_t i) {
    return change(page, i, batch.page_table, batch.page_table_stride);
  });
}

template <class Op>
void change_reads(Run<Op>& run, const std::function<int32_t(int32_t slot, int64_t s)>& change) {
  if (run.after) return;
  ops::BatchView& batch = run.args.batch;
  batch.state_read = changed(run, batch.state_read, batch.sequences, change);
}

// Sequences of exactly so many tokens.
template <class Op, class Use>
void sequences_of(Run<Op>& run, int32_t tokens, const Use& use) {
  if (!run.after) return;
  for (int32_t s = 0; s < run.args.batch.sequences; ++s) {
    if (run.args.batch.query_start[s + 1] - run.args.batch.query_start[s] == tokens)
      use(s, run.args.batch.query_start[s]);
  }
}

void add_rope(std::vector<Entry>& list) {
  using Q = Run<QkNormRopeOp>;
  const auto add = [&](Fault<QkNormRopeOp> entry) { list.push_back(fault<QkNormRopeOp>(std::move(entry))); };
  add({"N59 norms with plain w", {}, [](OwnWeight& own, size_t) {
         auto& m = own.source.matrices[0];
         auto* w = reinterpret_cast<numeric::Bf16*>(own.data(0));
         for (int64_t i = 0; i < m.cols; ++i) w[i] = numeric::bf16_from_float(numeric::bf16_to_float(w[i]) - 1);
       }});
  add({"norm of q in reverse", {}, [](OwnWeight& own, size_t which) {
         if (which != 0) return;
         auto* w = reinterpret_cast<numeric::Bf16*>(own.data(0));
         std::reverse(w, w + own.source.matrices[0].cols);
       }});
  add({"N60 angles of the next position", [](Q& run) {
         if (run.after) return;
         // Pages stay: only what turns the heads moves, so k lands one place further.
         change_positions(run, [](int32_t p) { return p % 64 == 63 ? p : p + 1; });
       }});
  add({"N62 positions start over at 4096",
       [](Q& run) { change_positions(run, [](int32_t p) { return p >= 4096 ? p - 4096 : p; }); }});
  add({"q of one head not turned", [](Q& run) {
         if (!run.after) return;
         for (int64_t d = 0; d < run.desc.head_dim; ++d) set(run.args.q_out, 0, d, get(run.args.qkv, 0, d));
       }});
  add({"N54 v of a token at the place of another", [](Q& run) {
         if (!run.after || run.args.batch.tokens.total < 2) return;
         const auto& cache = run.args.cache;
         const ops::View v(cache.v, cache.dtype, 1, int64_t{1} << 40);
         const int32_t p = run.args.batch.positions[0], page = run.args.batch.page_table[p / cache.page_tokens];
         const int64_t at = cache.offset(page, 0, p % cache.page_tokens);
         set(v, 0, at, get(run.args.qkv, 1, run.args.qkv.cols - int64_t{run.desc.kv_heads} * run.desc.head_dim));
       }});
  add({"N54 four positions of v share a place", [](Q& run) {
         if (!run.after) return;
         const auto& cache = run.args.cache;
         const ops::View v(cache.v, cache.dtype, 1, int64_t{1} << 40);
         const int32_t p = run.args.batch.positions[0], page = run.args.batch.page_table[p / cache.page_tokens];
         const int64_t to = cache.offset(page, 0, p % cache.page_tokens);
         const int64_t from = cache.offset(page, 0, p % cache.page_tokens / 4);
         for (int64_t d = 0; d < run.desc.head_dim; ++d) set(v, 0, to + d, get(v, 0, from + d));
       }});
  add({"N60 the whole head is turned", {}, {}, false, [](ops::QkNormRopeDesc& desc) {
         desc.rotary_dim = desc.head_dim;
       }});
  add({"N60 base of another model", {}, {}, false, [](ops::QkNormRopeDesc& desc) { desc.theta *= 10; }});
  add({"N59 eps of another model", {}, {}, false, [](ops::QkNormRopeDesc& desc) { desc.eps = 1e-3f; }});
  add({"writes into a page that is free", [](Q& run) {
         if (!run.after) return;
         const auto& cache = run.args.cache;
         const ops::View k(cache.k, cache.dtype, 1, int64_t{1} << 40);
         const int32_t p = run.args.batch.positions[0], page = run.args.batch.page_table[p / cache.page_tokens];
         set(k, 0, cache.offset(page, 0, (p + 7) % cache.page_tokens), 0.5f);
       }});
  add({"N64 a KV cache that is not finite is not flagged", [](Q& run) { run.launch.flags = nullptr; }});
  add({"a q that is not finite is flagged as KV", [](Q& run) {
         for (int64_t d = 0; run.after && d < run.args.q_out.rows * run.args.q_out.cols; ++d) {
           if (std::isnan(get(run.args.q_out, d / run.args.q_out.cols, d % run.args.q_out.cols)))
             run.launch.flags->words[run.launch.layer] |= ops::Sentinel::kNonFiniteKv;
         }
       }});
  add({"k of the last kv head is 1 % off", [](Q& run) {
         if (!run.after) return;
         const auto& cache = run.args.cache;
         const int32_t p = run.args.batch.positions[0], page = run.args.batch.page_table[p / cache.page_tokens];
         const ops::View k(cache.k, cache.dtype, 1, int64_t{1} << 40);
         const int64_t at = cache.offset(page, run.desc.kv_heads - 1, p % cache.page_tokens);
         for (int64_t d = 0; d < run.desc.head_dim; ++d) set(k, 0, at + d, 1.01f * get(k, 0, at + d));
       }});
}

// The output of one head of a decode token near the start, anew, with narrow sums over positions.
void narrow_values(Run<AttentionOp>& run, int32_t t, int32_t head) {
  const auto& batch = run.args.batch;
  const auto& cache = run.args.cache;
  const int32_t count = batch.positions[t] + 1, dim = run.desc.head_dim,
                kv = head / (run.desc.heads / run.desc.kv_heads);
  const int32_t page = batch.page_table[batch.sequence_of[t] * batch.page_table_stride];
  const ops::ConstView k(cache.k, cache.dtype, 1, int64_t{1} << 40), v(cache.v, cache.dtype, 1, int64_t{1} << 40);
  std::vector<double> weights;
  double total = 0;
  for (int32_t j = 0; j < count; ++j) {
    double score = 0;
    for (int32_t d = 0; d < dim; ++d) {
      score += double{get(run.args.q, t, head * dim + d)} * get(k, 0, cache.offset(page, kv, j) + d);
    }
    weights.push_back(std::exp(run.desc.scale * score));
    total += weights.back();
  }
  for (int32_t d = 0; d < dim; ++d) {
    float sum = 0;
    for (int32_t j = 0; j < count; ++j) {
      const double p = weights[static_cast<size_t>(j)] / total;
      sum = narrow_sum(sum, static_cast<float>(p * get(v, 0, cache.offset(page, kv, j) + d)));
    }
    const float gate = run.desc.output_gate ? get(run.args.gate, t, 2 * head * dim + d) : INFINITY;
    const auto open = static_cast<float>(1 / (1 + std::exp(-double{gate})));
    set(run.args.out, t, head * dim + d, sum * open);
  }
}

void add_attention(std::vector<Entry>& list) {
  using A = Run<AttentionOp>;
  const auto add = [&](const char* name, std::function<void(A&)> change) {
    list.push_back(fault<AttentionOp>({name, std::move(change)}));
  };
  add("N53 key scale of a quarter ignored", [](A& run) {
    if (!run.after) run.args.cache.k_scale = 0.25f;
  });
  add("N53 value scale of a half ignored", [](A& run) {
    if (!run.after) run.args.cache.v_scale = 0.5f;
  });
  add("a token does not see itself",
      [](A& run) { change_positions(run, [](int32_t p) { return std::max(p - 1, 0); }); });
  add("a token sees the next",
      [](A& run) { change_positions(run, [](int32_t p) { return p % 64 == 63 ? p : p + 1; }); });
  add("past position 4096 the first page is read again", [](A& run) {
    change_pages(run, [](int32_t page, int64_t i, const int32_t* table, int32_t stride) {
      return i % stride >= 64 ? table[i / stride * stride] : page;
    });
  });
  add("pages of two sequences exchanged", [](A& run) {
    change_pages(run, [&](int32_t page, int64_t i, const int32_t* table, int32_t stride) {
      const int64_t other = i < stride ? i + stride : i < 2 * stride ? i - stride : i;
      return run.args.batch.sequences > 1 && table[other] >= 0 && page >= 0 ? table[other] : page;
    });
  });
  add("N60 gate left out", [](A& run) {
    if (!run.after || !run.desc.output_gate) return;
    for (int64_t d = 0; d < run.desc.head_dim; ++d) {
      set(run.args.out, 0, d, get(run.args.out, 0, d) * (1 + std::exp(-get(run.args.gate, 0, d))));
    }
  });
  add("N18 heads of two groups exchanged", [](A& run) {
    if (!run.after) return;
    for (int64_t d = 0; d < run.desc.head_dim; ++d) {
      const int64_t last = int64_t{run.desc.heads - 1} * run.desc.head_dim + d;
      const float first = get(run.args.out, 0, d);
      set(run.args.out, 0, d, get(run.args.out, 0, last));
      set(run.args.out, 0, last, first);
    }
  });
  list.push_back(fault<AttentionOp>(
      {"softmax scale 1 % off", {}, {}, false, [](ops::AttentionDesc& desc) { desc.scale *= 1.01f; }}));
  list.push_back(fault<AttentionOp>(
      {"scale of another head size", {}, {}, false, [](ops::AttentionDesc& desc) { desc.scale /= std::sqrt(2.0f); }}));
  const auto draw = std::make_shared<ops::CaseRandom>(5);
  list.push_back(fault<AttentionOp>({"N47 one run in 100 of several sequences",
                                     [draw](A& run) {
                                       if (run.after && run.args.batch.sequences > 1 && draw->below(100) == 0)
                                         nudge(run.args.out, 0, 0, 1);
                                     },
                                     {},
                                     true}));
  add("lse to base two", [](A& run) {
    if (run.after && run.args.lse) scale(run.args.lse, 1.442695f);
  });
  add("N56 prompts of three tokens: the last is wrong", [](A& run) {
    sequences_of(run, 3, [&](int32_t, int64_t first) { scale(run.args.out.slice(first + 2, 1), 0.5f); });
  });
  add("sums of values keep 16 bits", [](A& run) {
    if (!run.after) return;
    const auto& batch = run.args.batch;
    for (int32_t t = 0; t < batch.tokens.decode; ++t) {
      for (int32_t h = 0; batch.positions[t] < 8 && h < run.desc.heads; ++h) narrow_values(run, t, h);
    }
  });
  add("one sequence alone past 4096 is 1 % off", [](A& run) {
    if (run.after && run.args.batch.tokens.total == 1 && run.args.batch.positions[0] > 4096) scale(run.args.out, 1.01f);
  });
  add("positions from 512 to 2047 are 1 % off", [](A& run) {
    for (int32_t t = 0; run.after && t < run.args.batch.tokens.total; ++t) {
      const int32_t position = run.args.batch.positions[t];
      if (position >= 512 && position < 2048) scale(run.args.out.slice(t, 1), 1.01f);
    }
  });
  add("one token of one sequence is 1 % off", [](A& run) {
    if (run.after && run.args.batch.tokens.total == 1) scale(run.args.out, 1.01f);
  });
  add("a key that was read is written", [](A& run) {
    if (!run.after) return;
    const auto& cache = run.args.cache;
    const ops::View k(cache.k, cache.dtype, 1, int64_t{1} << 40);
    const int64_t at = cache.offset(run.args.batch.page_table[0], 0, 0);
    set(k, 0, at, get(k, 0, at) + 1);
  });
  add("1 % off where pages follow each other", [](A& run) {
    const auto& cache = run.args.cache;
    if (run.after && cache.page_stride == int64_t{cache.kv_heads} * cache.page_tokens * cache.head_dim)
      scale(run.args.out, 1.01f);
  });
  add("decode rows of a mixed step 1 % off", [](A& run) {
    const auto& tokens = run.args.batch.tokens;
    if (run.after && tokens.decode > 0 && tokens.decode < tokens.total)
      scale(run.args.out.slice(0, tokens.decode), 1.01f);
  });
}

void add_conv(std::vector<Entry>& list) {
  using C = Run<ConvGatesOp>;
  const auto add = [&](Fault<ConvGatesOp> entry) { list.push_back(fault<ConvGatesOp>(std::move(entry))); };
  add({"N59 taps reversed", {}, [](OwnWeight& own, size_t which) {
         if (which != 0) return;
         auto& m = own.source.matrices[0];
         auto* w = reinterpret_cast<numeric::Bf16*>(own.data(0));
         for (int64_t c = 0; c < m.rows; ++c) std::reverse(w + c * m.cols, w + (c + 1) * m.cols);
       }});
  add({"A_log 2 % off", [](C& run) {
         if (run.after) scale(run.args.g, 1.02f);
       }});
  add({"N59 dt_bias left out", {}, [](OwnWeight& own, size_t which) {
         if (which == 2) std::fill_n(own.data(0), own.source.matrices[0].data.size(), std::byte{0});
       }});
  add({"N57 a new sequence starts from an old state", [](C& run) {
         change_reads<ConvGatesOp>(
             run, [&](int32_t slot, int64_t s) { return slot < 0 ? static_cast<int32_t>(2 * s) : slot; });
       }});
  add({"N57 a hit forgets its state",
       [](C& run) { change_reads<ConvGatesOp>(run, [](int32_t, int64_t) { return -1; }); }});
  add({"N57 the kept inputs are one token old", [](C& run) {
         sequences_of(run, 1, [&](int32_t s, int64_t) {
           const ops::View state(run.args.state.conv, run.args.state.conv_dtype, 1, int64_t{1} << 40);
           const int64_t at = run.args.batch.state_write[s] * run.args.state.conv_stride;
           for (int32_t i = run.desc.width - 2; i > 0; --i) set(state, 0, at + i, get(state, 0, at + i - 1));
         });
       }});
  add({"N59 k longer than one", [](C& run) {
         if (run.after) scale(run.args.k, 1.01f);
       }});
  add({"q not scaled", [](C& run) {
         if (run.after) scale(run.args.q, std::sqrt(static_cast<float>(run.desc.key_dim)));
       }});
  add({"N59 norms of q and k without their eps", [](C& run) {
         if (!run.after) return;
         for (int64_t t = 0; t < run.args.k.rows; ++t) {
           for (int64_t first = 0; first < run.args.k.cols; first += run.desc.key_dim) {
             double squares = 0;
             for (int64_t i = 0; i < run.desc.key_dim; ++i) squares += std::pow(get(run.args.k, t, first + i), 2);
             const auto factor = static_cast<float>(squares > 0 ? 1 / std::sqrt(squares) : 1);
             scale(run.args.k.slice(t, 1), factor, first, first + run.desc.key_dim);
           }
         }
       }});
  add({"N64 kept inputs that are not finite are not flagged", [](C& run) { run.launch.flags = nullptr; }});
  add({"N18 b and a exchanged", [](C& run) {
         if (!run.after) std::swap(run.args.a, run.args.b);
       }});
}

void add_delta(std::vector<Entry>& list) {
  using G = Run<GatedDeltaOp>;
  const auto add = [&](const char* name, std::function<void(G&)> change) {
    list.push_back(fault<GatedDeltaOp>({name, std::move(change)}));
  };
  add("N57 a new sequence starts from an old state", [](G& run) {
    change_reads<GatedDeltaOp>(run,
                               [](int32_t slot, int64_t s) { return slot < 0 ? static_cast<int32_t>(2 * s) : slot; });
  });
  add("N57 a hit forgets its state",
      [](G& run) { change_reads<GatedDeltaOp>(run, [](int32_t, int64_t) { return -1; }); });
  add("one element of the state is stale", [](G& run) {
    if (run.after) run.args.state.delta[run.args.batch.state_write[0] * run.args.state.delta_stride + 5] *= 0.999f;
  });
  const auto draw = std::make_shared<ops::CaseRandom>(7);
  list.push_back(
      fault<GatedDeltaOp>({"N62 one element of the state, one run in 100",
                           [draw](G& run) {
                             if (run.after && draw->below(100) == 0)
                               run.args.state.delta[run.args.batch.state_write[0] * run.args.state.delta_stride] += 1;
                           },
                           {},
                           true}));
  add("one token of one sequence is 1 % off", [](G& run) {
    if (run.after && run.args.batch.tokens.total == 1) scale(run.args.out, 1.01f);
  });
  add("writes one element past its slot", [](G& run) {
    const int64_t size = int64_t{run.desc.value_heads} * run.desc.key_dim * run.desc.value_dim;
    if (run.after) run.args.state.delta[run.args.batch.state_write[0] * run.args.state.delta_stride + size] = 1;
  });
  add("writes a slot of another sequence", [](G& run) {
    if (run.after) run.args.state.delta[run.args.state.delta_stride * 2 * run.args.batch.sequences] = 1;
  });
  add("N56 prompts of three tokens: the state is zero", [](G& run) {
    sequences_of(run, 3, [&](int32_t s, int64_t) {
      std::fill_n(run.args.state.delta + run.args.batch.state_write[s] * run.args.state.delta_stride, 64, 0.0f);
    });
  });
  add("N64 a state that is not finite is not flagged", [](G& run) { run.launch.flags = nullptr; });
  add("a sequence without tokens writes its slot", [](G& run) {
    sequences_of(run, 0, [&](int32_t s, int64_t) {
      run.args.state.delta[run.args.batch.state_write[s] * run.args.state.delta_stride] = 0;
    });
  });
  add("sums of S^T q keep 16 bits", [](G& run) {
    sequences_of(run, 1, [&](int32_t s, int64_t t) {
      const float* state = run.args.state.delta + run.args.batch.state_write[s] * run.args.state.delta_stride;
      for (int64_t c = 0; c < run.args.out.cols; ++c) {
        const int64_t head = c / run.desc.value_dim, key = head / (run.desc.value_heads / run.desc.key_heads);
        float sum = 0;
        for (int64_t i = 0; i < run.desc.key_dim; ++i) {
          const float element = state[(head * run.desc.key_dim + i) * run.desc.value_dim + c % run.desc.value_dim];
          sum = narrow_sum(sum, element * get(run.args.q, t, key * run.desc.key_dim + i));
        }
        set(run.args.out, t, c, sum);
      }
    });
  });
  add("key heads of two groups exchanged", [](G& run) {
    if (run.after) return;
    const auto count = static_cast<size_t>(run.args.q.rows * run.args.q.cols);
    run.scratch.emplace_back(count);
    const ops::View q(run.scratch.back().data(), DType::kF32, run.args.q.rows, run.args.q.cols);
    for (int64_t t = 0; t < q.rows; ++t) {
      for (int64_t i = 0; i < q.cols; ++i) set(q, t, i, get(run.args.q, t, (i + run.desc.key_dim) % q.cols));
    }
    run.args.q = q;
  });
  add("N42 decay left out after 64 tokens", [](G& run) {
    sequences_of(run, 65, [&](int32_t, int64_t first) { scale(run.args.out.slice(first + 64, 1), 1.05f); });
  });
}

}  // namespace

void add_sequence_faults(std::vector<Entry>& list) {
  add_rope(list);
  add_attention(list);
  add_conv(list);
  add_delta(list);
}

}  // namespace assay::faults

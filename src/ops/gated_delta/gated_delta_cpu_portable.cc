// gated_delta in plain C++: one item per (sequence, value head, strip of 16 value columns); columns are independent. A
// strip passes all tokens of its sequence in order. Between a prompt's first and last token the strip lives in a packed
// copy (key_dim * 64 bytes, in L1), so a prompt moves each state once in and once out; a decode step is bound by
// reading and writing key_dim * value_dim * 4 bytes a head.
//
// Order, for each column: m = exp(g) * (sum of S[i] k[i], i rising); S[i] = exp(g) S[i] + k[i] d; o = sum of S[i] q[i],
// i rising. Nothing depends on the strip, the batch or where a sequence is cut.
#include <algorithm>

#include "backend/cpu/exp.h"
#include "backend/cpu/lanes.h"
#include "backend/cpu/thread_pool.h"
#include "ops/gated_delta/gated_delta_rows.h"
#include "ops/host_launch.h"

namespace assay::ops {
namespace {

using cpu::F4;

constexpr int32_t kStrip = 16;       // value columns
constexpr int32_t kMaxKeyDim = 512;  // the packed copy is on the stack: 32 KiB
constexpr int64_t kGrain = 4;        // strips worth a thread: some microseconds

// Where a strip of the state is: row i at data + i * stride.
struct ConstStrip {
  const float* data;
  int64_t stride;
};
struct Strip {
  float* data;
  int64_t stride;
};

// One head's inputs of one token.
struct Token {
  const float* q;
  const float* k;
  float decay;  // exp(g)
  float beta;
};

inline void load(const float* from, float& value) { value = *from; }
inline void load(const float* from, F4& value) { value = cpu::load4(from); }
inline void store(float* to, float value) { *to = value; }
inline void store(float* to, F4 value) { cpu::store4(to, value); }

// One token for N registers of columns: V is F4 or, for the columns beyond a multiple of four, float.
template <class V, int N>
void step(const Token& token, const float* value, ConstStrip from, Strip to, int32_t key_dim, float* out) {
  constexpr int kWidth = sizeof(V) / sizeof(float);
  V memory[N] = {};
  for (int32_t i = 0; i < key_dim; ++i) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      V state;
      load(from.data + i * from.stride + n * kWidth, state);
      memory[n] += state * token.k[i];
    }
  }
  V delta[N];
  V sum[N] = {};
#pragma GCC unroll 4
  for (int n = 0; n < N; ++n) {
    V wanted;
    load(value + n * kWidth, wanted);
    delta[n] = token.beta * (wanted - token.decay * memory[n]);
  }
  for (int32_t i = 0; i < key_dim; ++i) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      V state;
      load(from.data + i * from.stride + n * kWidth, state);
      state = token.decay * state + token.k[i] * delta[n];
      store(to.data + i * to.stride + n * kWidth, state);
      sum[n] += state * token.q[i];
    }
  }
#pragma GCC unroll 4
  for (int n = 0; n < N; ++n) store(out + n * kWidth, sum[n]);
}

// A token for `columns` <= kStrip columns.
void step_strip(const Token& token, const float* value, ConstStrip from, Strip to, int32_t key_dim, int32_t columns,
                float* out) {
  if (columns == kStrip) return step<F4, kStrip / 4>(token, value, from, to, key_dim, out);
  int32_t c = 0;
  const auto at = [&](int32_t column) { return ConstStrip{from.data + column, from.stride}; };
  const auto to_at = [&](int32_t column) { return Strip{to.data + column, to.stride}; };
  for (; c + 4 <= columns; c += 4) step<F4, 1>(token, value + c, at(c), to_at(c), key_dim, out + c);
  for (; c < columns; ++c) step<float, 1>(token, value + c, at(c), to_at(c), key_dim, out + c);
}

class CpuPortable : public Plan<GatedDeltaOp::Args> {
 public:
  explicit CpuPortable(const GatedDeltaDesc& desc) : desc_(desc) {}

  void enqueue(const GatedDeltaOp::Args& args, const Launch& launch) const override {
    CHECK(args.v.dtype == desc_.activation && args.out.dtype == desc_.activation, "dtypes differ from the plan's");
    const int64_t strips = (desc_.value_dim + kStrip - 1) / kStrip;
    const int64_t per_sequence = desc_.value_heads * strips;
    cpu::with_activation(desc_.activation, [&]<class T>() {
      cpu::pool_of(launch.stream)
          .parallel_for(args.batch.sequences * per_sequence, kGrain, [&](int64_t begin, int64_t end) {
            bool bad = false;
            for (int64_t item = begin; item < end; ++item) {
              const auto within = static_cast<int32_t>(item % per_sequence);
              bad |= run_strip<T>(args, item / per_sequence, within / static_cast<int32_t>(strips),
                                  within % static_cast<int32_t>(strips) * kStrip, launch.flags != nullptr);
            }
            if (bad) raise_flags(launch, Sentinel::kNonFiniteState);
          });
    });
  }

 private:
  // All tokens of a sequence for columns [column, column + kStrip) of one value head. True when `check` and a value of
  // the state that is left is not finite.
  template <class T>
  bool run_strip(const GatedDeltaOp::Args& args, int64_t sequence, int32_t head, int32_t column, bool check) const {
    static constexpr float kZeros[kStrip] = {};
    const BatchView& batch = args.batch;
    const int64_t first = batch.query_start[sequence];
    const int64_t last = batch.query_start[sequence + 1];
    if (first == last) return false;  // no tokens: the slots are left alone
    const int32_t columns = std::min(kStrip, desc_.value_dim - column);
    const int64_t within = (int64_t{head} * desc_.key_dim) * desc_.value_dim + column;
    const int32_t read = batch.state_read[sequence];
    const Strip written{args.state.delta + batch.state_write[sequence] * args.state.delta_stride + within,
                        desc_.value_dim};
    ConstStrip from{kZeros, 0};
    if (read >= 0) from = {args.state.delta + read * args.state.delta_stride + within, desc_.value_dim};
    alignas(64) float packed[kMaxKeyDim * kStrip];
    const int64_t key = int64_t{head / (desc_.value_heads / desc_.key_heads)} * desc_.key_dim;
    for (int64_t t = first; t < last; ++t) {
      const Strip to = t + 1 == last ? written : Strip{packed, kStrip};
      const Token token{args.q.row<float>(t) + key, args.k.row<float>(t) + key,
                        cpu::fast_exp(args.g.row<float>(t)[head]), args.beta.row<float>(t)[head]};
      const int64_t at = int64_t{head} * desc_.value_dim + column;
      float value[kStrip];
      float out[kStrip];
      for (int32_t c = 0; c < columns; ++c) value[c] = cpu::to_float(args.v.row<T>(t)[at + c]);
      step_strip(token, value, from, to, desc_.key_dim, columns, out);
      for (int32_t c = 0; c < columns; ++c) args.out.row<T>(t)[at + c] = cpu::from_float<T>(out[c]);
      from = {to.data, to.stride};
    }
    bool bad = false;
    for (int32_t i = 0; check && i < desc_.key_dim; ++i) {
      bad |= cpu::any_non_finite(written.data + i * written.stride, columns);
    }
    return bad;
  }

  GatedDeltaDesc desc_;
};

Refusal can_run(const GatedDeltaDesc& desc, const DeviceCaps& caps) {
  if (desc.key_dim > kMaxKeyDim) return fmt::format("key_dim above {}", kMaxKeyDim);
  return refuse_gated_delta(desc, caps);
}

}  // namespace

constinit const Impl<GatedDeltaOp> kGatedDeltaCpuPortable = {
    .name = "cpu_portable",
    .backend = Backend::kCpu,
    .order =
        [](const GatedDeltaDesc&) { return order_id("gated_delta: token by token, keys rising, decay after the sum"); },
    .layout = [](const GatedDeltaDesc&) { return LayoutId{nullptr}; },
    .can_run = can_run,
    .workspace_bytes = [](const GatedDeltaDesc&, const Bucket&, MakeContext&) { return size_t{0}; },
    .make = [](const GatedDeltaDesc& desc, const Bucket&, const NoWeights&,
               MakeContext&) -> Result<std::unique_ptr<Plan<GatedDeltaOp::Args>>> {
      return std::unique_ptr<Plan<GatedDeltaOp::Args>>(new CpuPortable(desc));
    }};

}  // namespace assay::ops

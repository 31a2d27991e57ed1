// qk_norm_rope, the CUDA definition: one thread a token and head (query, then key heads), fp64.
#include "ops/checked_source.h"
#include "ops/qk_norm_rope/qk_norm_rope_rows.h"
#include "ops/qk_norm_rope/rope_table.h"
#include "ops/reference_cuda.cuh"

namespace assay::ops {
namespace {

using namespace reference_cuda;

struct State {
  QkNormRopeDesc desc;
  FileWeight q_norm;
  FileWeight k_norm;
  RopeTable rope;
};

// Element i of the normed and turned head that starts at column `first` of the token's row.
__device__ double turned(const QkNormRopeDesc& desc, const RopeTable& rope, const FileWeight& weight,
                         const ConstView& qkv, int64_t t, int64_t first, double scale, int position, int i) {
  const auto normed = [&](int at) { return load(qkv, t, first + at) * scale * (1.0 + value(weight, 0, at)); };
  const int half = desc.rotary_dim / 2;
  if (i >= desc.rotary_dim) return normed(i);
  const int pair = i < half ? i : i - half;
  const double angle = static_cast<float>(position) * rope.inv_freq[pair];
  return i < half ? normed(i) * cos(angle) - normed(i + half) * sin(angle)
                  : normed(i) * cos(angle) + normed(i - half) * sin(angle);
}

__global__ void qk_norm_rope(State state, QkNormRopeOp::Args args, uint32_t* flags) {
  const QkNormRopeDesc& desc = state.desc;
  const int64_t index = thread_index();
  const int heads = desc.heads + desc.kv_heads;
  const int64_t t = index / heads;
  const int head = static_cast<int>(index % heads), kv_head = head - desc.heads;
  if (t >= live_total(args.batch.tokens)) return;
  const int64_t dim = desc.head_dim, q_width = dim * (desc.output_gate ? 2 : 1);
  const bool query = kv_head < 0;
  const int64_t first = query ? head * q_width : desc.heads * q_width + kv_head * dim;
  double squares = 0;
  for (int i = 0; i < dim; ++i) squares += load(args.qkv, t, first + i) * load(args.qkv, t, first + i);
  const double scale = 1.0 / sqrt(squares / dim + desc.eps);
  const int position = args.batch.positions[t];
  if (query) {
    for (int i = 0; i < dim; ++i) {
      store(args.q_out, t, head * dim + i,
            turned(desc, state.rope, state.q_norm, args.qkv, t, first, scale, position, i));
    }
    return;
  }
  const KvCacheView& cache = args.cache;
  const int64_t row = int64_t{args.batch.sequence_of[t]} * args.batch.page_table_stride;
  const int64_t page = args.batch.page_table[row + position / cache.page_tokens];
  const int64_t to =
      page * cache.page_stride + (int64_t{kv_head} * cache.page_tokens + position % cache.page_tokens) * dim;
  bool finite = true;
  for (int i = 0; i < dim; ++i) {
    const double k = turned(desc, state.rope, state.k_norm, args.qkv, t, first, scale, position, i) / cache.k_scale;
    const double v = load(args.qkv, t, first + desc.kv_heads * dim + i) / cache.v_scale;
    store(desc.cache, cache.k, to + i, k);
    store(desc.cache, cache.v, to + i, v);
    finite = finite && isfinite(round_to(desc.cache, k)) && isfinite(round_to(desc.cache, v));
  }
  flag(flags, Sentinel::kNonFiniteKv, !finite);
}

void enqueue(const State& state, const QkNormRopeOp::Args& args, const Launch& launch) {
  const int64_t heads = int64_t{args.batch.tokens.total} * (state.desc.heads + state.desc.kv_heads);
  cuda::launch("qk_norm_rope cuda_reference", qk_norm_rope, cuda::blocks_for(heads, 64), 64, 0, launch.stream, state,
               args, cuda_row::flag_word(launch));
}

Result<PlanPtr<QkNormRopeOp>> make(const QkNormRopeDesc& desc, const Bucket&, const QkNormRopeOp::Weights& weights,
                                   MakeContext& context) {
  State state{desc, {}, {}, RopeTable(desc)};
  for (const WeightId id : {weights.q_norm, weights.k_norm}) {
    ASSAY_TRY(checked_vector(context.weights, id, desc.head_dim));
  }
  ASSAY_ASSIGN(state.q_norm, cuda_file_weight(context.weights, weights.q_norm));
  ASSAY_ASSIGN(state.k_norm, cuda_file_weight(context.weights, weights.k_norm));
  return cuda_row::make_plan<QkNormRopeOp, State, enqueue>(state);
}

Refusal can_run(const QkNormRopeDesc& desc, const DeviceCaps& caps) {
  if (Refusal refusal = refuse_qk_norm_rope(desc, caps)) return refusal;
  return RopeTable::refuse(desc);
}

}  // namespace

const Impl<QkNormRopeOp> kQkNormRopeCudaReference = {
    .name = "cuda_reference",
    .backend = Backend::kCuda,
    .order = cuda_row::no_order<QkNormRopeOp>,
    .layout = cuda_row::no_layout<QkNormRopeOp>,
    .can_run = can_run,
    .workspace_bytes = cuda_row::no_workspace<QkNormRopeOp>,
    .make = make,
};

}  // namespace assay::ops

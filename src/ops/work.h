// The work of one call of an op, whatever row runs it: what it has to move and to compute at least.
//
// Bytes: weights as their format stores them, state, cache and activations, each once per read and once per write.
// FLOPs: a multiply-add is two; only products and the delta rule are counted, elementwise arithmetic never limits.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "ops/attention/attention.h"
#include "ops/conv_gates/conv_gates.h"
#include "ops/embed/embed.h"
#include "ops/experts/experts.h"
#include "ops/gated_delta/gated_delta.h"
#include "ops/linear/linear.h"
#include "ops/qk_norm_rope/qk_norm_rope.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/router/router.h"
#include "ops/sample/sample.h"
#include "ops/silu_mul/silu_mul.h"

namespace assay::ops {

struct Work {
  double bytes = 0;
  double flops = 0;
};

// Reads what Args point to, wherever it lies: positions, slots, chosen experts.
using ReadInts = std::function<std::vector<int32_t>(const void* data, int64_t count)>;

Work work(const LinearDesc& desc, const LinearOp::Args& args, const ReadInts& read);
Work work(const EmbedDesc& desc, const EmbedOp::Args& args, const ReadInts& read);
Work work(const RmsNormDesc& desc, const RmsNormOp::Args& args, const ReadInts& read);
Work work(const SiluMulDesc& desc, const SiluMulOp::Args& args, const ReadInts& read);
Work work(const RouterDesc& desc, const RouterOp::Args& args, const ReadInts& read);
// Weights of the experts that some token chose.
Work work(const ExpertsDesc& desc, const ExpertsOp::Args& args, const ReadInts& read);
Work work(const QkNormRopeDesc& desc, const QkNormRopeOp::Args& args, const ReadInts& read);
// Keys and values of a sequence once, however many of its tokens are in the batch.
Work work(const AttentionDesc& desc, const AttentionOp::Args& args, const ReadInts& read);
Work work(const ConvGatesDesc& desc, const ConvGatesOp::Args& args, const ReadInts& read);
Work work(const GatedDeltaDesc& desc, const GatedDeltaOp::Args& args, const ReadInts& read);
Work work(const SampleDesc& desc, const SampleOp::Args& args, const ReadInts& read);

// Ops made of parts have no work of their own.
template <class Op>
concept HasWork = requires(const typename Op::Desc& desc, const typename Op::Args& args, const ReadInts& read) {
  work(desc, args, read);
};

}  // namespace assay::ops

// The rows of embed, for its table, and the check they share.
#pragma once

#include "ops/checked_source.h"
#include "ops/embed/embed.h"

namespace assay::ops {

extern const Impl<EmbedOp> kEmbedReference;
extern const Impl<EmbedOp> kEmbedCpuPortable;
extern const Impl<EmbedOp> kEmbedCudaGather;
extern const Impl<EmbedOp> kEmbedCudaReference;

// Nothing is summed and each value is rounded as the formula says: all rows agree bit for bit.
inline constexpr OrderId kEmbedOrder = order_id("embed exact");

// One matrix [vocab, hidden]. Errors: kCheckpoint.
inline Result<const WeightSource*> checked_table(const WeightProvider& weights, WeightId id, const EmbedDesc& desc) {
  ASSAY_ASSIGN(const WeightSource* source, checked_source(weights, id, desc.vocab, desc.hidden, desc.format));
  if (source->matrices.size() == 1) return source;
  return Error{ErrorKind::kCheckpoint,
               "an embedding table must be one matrix",
               source->name,
               std::to_string(source->matrices.size()),
               "1",
               ""};
}

}  // namespace assay::ops

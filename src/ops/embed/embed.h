// embed: y[t] = round(table[ids[t]]), a row of the embedding table per token.
//
// ids I32 [T, 1], each in [0, vocab): the engine has checked them. y [T, hidden] activation dtype.
#pragma once

#include <span>

#include "ops/batch.h"
#include "ops/impl.h"

namespace assay::ops {

struct EmbedDesc {
  int64_t vocab = 0;
  int64_t hidden = 0;
  numeric::WeightFormat format = numeric::WeightFormat::kBf16;
  DType activation = DType::kBf16;
  bool operator==(const EmbedDesc&) const = default;
};
std::string describe(const EmbedDesc& desc);

struct EmbedOp {
  static constexpr std::string_view kName = "embed";
  using Desc = EmbedDesc;
  struct Weights {
    WeightId table;  // [vocab, hidden]
  };
  struct Args {
    TokenCounts tokens;
    ConstView ids;
    View y;
  };
  static std::span<const Impl<EmbedOp>> impls();
};

}  // namespace assay::ops

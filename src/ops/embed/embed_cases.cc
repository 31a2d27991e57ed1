// What embed is proven with: nothing is rounded but the table's own value, so every element must be equal.
#include "numeric/decode.h"
#include "ops/all_cases.h"

namespace assay::ops {

std::vector<Case<EmbedOp>> make_cases(const EmbedDesc& desc, const EmbedOp::Weights& weights,
                                      const CaseContext& context) {
  std::vector<Case<EmbedOp>> cases;
  const numeric::EncodedMatrix& table = context.weights.source(weights.table).matrices[0];
  for (int32_t tokens : token_counts(context, context.bucket.tokens, 1000)) {
    CaseRandom random(context.seed + static_cast<uint64_t>(tokens));
    Case<EmbedOp> made;
    made.name = fmt::format("ids T={}", tokens);
    made.work = tokens * desc.hidden;
    made.bucket = {tokens, tokens, tokens};
    made.bench = std::make_unique<Bench>(context.device, cases.size() % 2 == 0);
    Bench& bench = *made.bench;
    const int ids = bench.add("ids", DType::kI32, tokens, 1, Role::kInput, 0, [&](int64_t t, int64_t) {
      return static_cast<double>(t == 0 ? desc.vocab - 1 : t == 1 ? 0 : random.below(desc.vocab));
    });
    const int y = bench.add("y", desc.activation, tokens, desc.hidden, Role::kOutput, 64);
    made.args = {{0, tokens, nullptr}, bench.view(ids), bench.view(y)};
    made.judge = [&bench, &table, desc, tokens, ids, y](Comparison& comparison) {
      std::vector<double> row(static_cast<size_t>(desc.hidden));
      for (int32_t t = 0; t < tokens; ++t) {
        const auto id = static_cast<int64_t>(bench.initial(ids, t, 0));
        numeric::decode_row(table, id, row.data());
        for (int64_t i = 0; i < desc.hidden; ++i) {
          comparison.equal(Evidence::kIdentity, "y", t, i, bench.at(y, t, i),
                           round_to_dtype(desc.activation, row[static_cast<size_t>(i)]));
        }
      }
    };
    cases.push_back(std::move(made));
  }
  return cases;
}

EmbedOp::Weights synthetic(const EmbedDesc& desc, CaseWeights& weights, CaseRandom& random) {
  return {weights.add({{desc.format, desc.vocab, desc.hidden}}, 1.0, random)};
}

}  // namespace assay::ops

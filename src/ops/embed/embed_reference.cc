// embed, the definition: the table row decoded exactly, rounded to fp32 and from there to the activation dtype.
#include "numeric/decode.h"
#include "ops/embed/embed_rows.h"
#include "ops/reference.h"
#include "ops/refusals.h"

namespace assay::ops {
namespace {

class EmbedReference : public Plan<EmbedOp::Args> {
 public:
  EmbedReference(const EmbedDesc& desc, const WeightSource& source) : desc_(desc), source_(source) {}

  void enqueue(const EmbedOp::Args& args, const Launch& launch) const override {
    auto* row = static_cast<double*>(launch.workspace.data);
    for (int32_t t = 0; t < args.tokens.total; ++t) {
      numeric::decode_row(source_.matrices[0], *args.ids.row<int32_t>(t), row);
      for (int64_t i = 0; i < desc_.hidden; ++i) reference::store(args.y, t, i, row[i]);
    }
  }

 private:
  EmbedDesc desc_;
  const WeightSource& source_;
};

}  // namespace

const Impl<EmbedOp> kEmbedReference{
    .name = "reference",
    .backend = Backend::kCpu,
    .order = [](const EmbedDesc&) { return kEmbedOrder; },
    .layout = [](const EmbedDesc&) { return &kFileLayout; },
    .can_run =
        [](const EmbedDesc& desc, const DeviceCaps&) {
          return refuse_weight_only(desc.format, weight_only_lane(desc.format), desc.activation, desc.hidden);
        },
    .workspace_bytes = [](const EmbedDesc& desc, const Bucket&,
                          MakeContext&) { return static_cast<size_t>(desc.hidden) * sizeof(double); },
    .make = [](const EmbedDesc& desc, const Bucket&, const EmbedOp::Weights& weights,
               MakeContext& context) -> Result<PlanPtr<EmbedOp>> {
      ASSAY_ASSIGN(const WeightSource* source, checked_table(context.weights, weights.table, desc));
      return PlanPtr<EmbedOp>(std::make_unique<EmbedReference>(desc, *source));
    },
};

}  // namespace assay::ops

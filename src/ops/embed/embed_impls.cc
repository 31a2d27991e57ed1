#include <fmt/format.h>

#include "ops/embed/embed_rows.h"

namespace assay::ops {

std::string describe(const EmbedDesc& desc) {
  return fmt::format("vocab={} hidden={} {} {}", desc.vocab, desc.hidden, numeric::weight_format_name(desc.format),
                     dtype_name(desc.activation));
}

std::span<const Impl<EmbedOp>> EmbedOp::impls() {
  static const Impl<EmbedOp> rows[] = {
#if ASSAY_WITH_CUDA
    kEmbedCudaGather,
    kEmbedCudaReference,
#endif
    kEmbedCpuPortable,
    kEmbedReference,
  };
  return rows;
}

}  // namespace assay::ops

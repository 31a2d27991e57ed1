#include "ops/work.h"

#include <set>

namespace assay::ops {
namespace {

double matrix_bytes(numeric::WeightFormat format, int64_t rows, int64_t cols) {
  numeric::EncodedMatrix matrix;
  matrix.format = format;
  matrix.rows = rows;
  matrix.cols = cols;
  return static_cast<double>(numeric::encoded_bytes(matrix));
}

double bytes(DType dtype, int64_t elements) {
  return static_cast<double>(elements) * static_cast<double>(dtype_bytes(dtype));
}

// Sequences that continue a state; the others start from zero.
int64_t continued(const BatchView& batch, const ReadInts& read) {
  int64_t count = 0;
  for (int32_t slot : read(batch.state_read, batch.sequences)) count += slot >= 0;
  return count;
}

}  // namespace

Work work(const LinearDesc& desc, const LinearOp::Args& args, const ReadInts&) {
  const int64_t tokens = args.tokens.total;
  const int64_t outputs = tokens * desc.n * (args.residual ? 2 : 1);
  return {
      matrix_bytes(desc.format, desc.n, desc.k) + bytes(desc.activation, tokens * desc.k) + bytes(desc.output, outputs),
      2.0 * static_cast<double>(tokens * desc.n * desc.k)};
}

Work work(const EmbedDesc& desc, const EmbedOp::Args& args, const ReadInts&) {
  const int64_t tokens = args.tokens.total;
  return {matrix_bytes(desc.format, tokens, desc.hidden) + bytes(desc.activation, tokens * desc.hidden), 0};
}

Work work(const RmsNormDesc& desc, const RmsNormOp::Args& args, const ReadInts&) {
  const int arrays = desc.kind == NormKind::kGated ? 3 : 2;
  return {bytes(desc.activation, arrays * args.tokens.total * desc.width * desc.groups), 0};
}

Work work(const SiluMulDesc& desc, const SiluMulOp::Args& args, const ReadInts&) {
  return {bytes(desc.activation, 3 * args.tokens.total * desc.width), 0};
}

Work work(const RouterDesc& desc, const RouterOp::Args& args, const ReadInts&) {
  const int64_t tokens = args.tokens.total;
  const int64_t rows = desc.experts + (desc.shared_gate ? 1 : 0);
  return {matrix_bytes(desc.format, rows, desc.hidden) + bytes(desc.activation, tokens * desc.hidden),
          2.0 * static_cast<double>(tokens * rows * desc.hidden)};
}

Work work(const ExpertsDesc& desc, const ExpertsOp::Args& args, const ReadInts& read) {
  const int64_t tokens = args.tokens.total;
  const std::vector<int32_t> ids = read(args.ids.data, (tokens - 1) * args.ids.stride + desc.top_k);
  std::set<int32_t> chosen;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int32_t i = 0; i < desc.top_k; ++i) chosen.insert(ids[static_cast<size_t>(t * args.ids.stride + i)]);
  }
  const int64_t arrays = 2 + (args.shared ? 1 : 0) + (args.residual ? 1 : 0);
  return {static_cast<double>(chosen.size()) * matrix_bytes(desc.format, 3 * desc.intermediate, desc.hidden) +
              bytes(desc.activation, arrays * tokens * desc.hidden),
          2.0 * static_cast<double>(tokens * desc.top_k * 3 * desc.intermediate * desc.hidden)};
}

Work work(const QkNormRopeDesc& desc, const QkNormRopeOp::Args& args, const ReadInts&) {
  const int64_t tokens = args.batch.tokens.total;
  const int64_t queries = tokens * desc.heads * desc.head_dim;
  const int64_t cached = 2 * tokens * desc.kv_heads * desc.head_dim;
  return {bytes(desc.activation, 2 * queries + cached) + bytes(desc.cache, cached), 0};
}

Work work(const AttentionDesc& desc, const AttentionOp::Args& args, const ReadInts& read) {
  const BatchView& batch = args.batch;
  const std::vector<int32_t> starts = read(batch.query_start, batch.sequences + 1);
  const std::vector<int32_t> positions = read(batch.positions, batch.tokens.total);
  int64_t cached = 0, scored = 0;  // positions read; pairs of query and key
  for (int32_t end : std::span(starts).subspan(1)) cached += positions[static_cast<size_t>(end - 1)] + 1;
  for (int32_t position : positions) scored += position + 1;
  const int64_t width = int64_t{desc.heads} * desc.head_dim;
  const int64_t arrays = desc.output_gate ? 3 : 2;
  return {bytes(desc.cache, 2 * cached * desc.kv_heads * desc.head_dim) +
              bytes(desc.activation, arrays * batch.tokens.total * width),
          4.0 * static_cast<double>(scored * width)};
}

Work work(const ConvGatesDesc& desc, const ConvGatesOp::Args& args, const ReadInts& read) {
  const BatchView& batch = args.batch;
  const int64_t tokens = batch.tokens.total;
  const int64_t kept = (batch.sequences + continued(batch, read)) * desc.channels() * (desc.width - 1);
  const int64_t keys = 2 * int64_t{desc.key_heads} * desc.key_dim;
  return {bytes(desc.activation, tokens * (2 * desc.channels() - keys) + kept) + bytes(DType::kF32, tokens * keys),
          2.0 * static_cast<double>(tokens * desc.channels() * desc.width)};
}

Work work(const GatedDeltaDesc& desc, const GatedDeltaOp::Args& args, const ReadInts& read) {
  const BatchView& batch = args.batch;
  const int64_t tokens = batch.tokens.total;
  const int64_t state = int64_t{desc.value_heads} * desc.key_dim * desc.value_dim;
  const int64_t keys = 2 * int64_t{desc.key_heads} * desc.key_dim;
  const int64_t values = 2 * int64_t{desc.value_heads} * desc.value_dim;
  // Per element of the state and token: decay, S^T k, S += k v^T, S^T q.
  return {bytes(DType::kF32, (batch.sequences + continued(batch, read)) * state + tokens * keys) +
              bytes(desc.activation, tokens * values),
          7.0 * static_cast<double>(tokens * state)};
}

Work work(const SampleDesc& desc, const SampleOp::Args& args, const ReadInts&) {
  return {bytes(DType::kF32, int64_t{args.rows} * desc.vocab), 0};
}

}  // namespace assay::ops

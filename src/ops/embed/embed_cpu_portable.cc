// embed on any CPU: tokens are split over the threads. A bf16 row for bf16 activations is copied; any other is decoded
// in chunks on the stack. Moves a row in and out: at one token the call costs more than its bytes.
#include <algorithm>
#include <type_traits>

#include "backend/cpu/lanes.h"
#include "backend/cpu/thread_pool.h"
#include "base/bytes.h"
#include "ops/embed/embed_rows.h"
#include "ops/portable_dot.h"
#include "ops/refusals.h"

namespace assay::ops {
namespace {

constexpr int64_t kValuesPerPiece = 20'000;

class EmbedCpuPortable : public Plan<EmbedOp::Args> {
 public:
  EmbedCpuPortable(const EmbedDesc& desc, const WeightSource& source) : desc_(desc), matrix_(source.matrices[0]) {}

  void enqueue(const EmbedOp::Args& args, const Launch& launch) const override {
    cpu::with_activation(desc_.activation, [&]<class T>() {
      cpu::pool_of(launch.stream)
          .parallel_for(args.tokens.total, std::max<int64_t>(1, kValuesPerPiece / desc_.hidden),
                        [&](int64_t begin, int64_t end) {
                          for (int64_t t = begin; t < end; ++t) copy(*args.ids.row<int32_t>(t), args.y.row<T>(t));
                        });
    });
  }

 private:
  template <class T>
  void copy(int32_t id, T* y) const {
    CHECK(id >= 0 && id < desc_.vocab, "token {} of {}", id, desc_.vocab);
    if (std::is_same_v<T, cpu::Bf16> && desc_.format == numeric::WeightFormat::kBf16) {
      return copy_bf16(matrix_.data.data() + id * desc_.hidden * 2, reinterpret_cast<uint16_t*>(y));
    }
    const float scale = portable::global_scale(matrix_);
    float values[portable::kChunk];
    for (int64_t first = 0; first < desc_.hidden; first += portable::kChunk) {
      const int64_t count = std::min(portable::kChunk, desc_.hidden - first);
      portable::decode(matrix_, id, first, count, values);
      cpu::map_lanes(
          count, y + first, [=](cpu::F4 value) { return value * scale; }, values);
    }
  }

  // A copy, but for what widening and rounding do to bf16: NaNs become quiet.
  void copy_bf16(const std::byte* from, uint16_t* y) const {
    int16_t largest = 0;
    for (int64_t i = 0; i < desc_.hidden; ++i) {
      const auto bits = load_unaligned<uint16_t>(from + 2 * i);
      y[i] = bits;
      largest = std::max(largest, static_cast<int16_t>(bits & 0x7fff));
    }
    constexpr int16_t kInfinity = 0x7f80;
    if (largest <= kInfinity) [[likely]]
      return;
    for (int64_t i = 0; i < desc_.hidden; ++i) {
      if ((y[i] & 0x7fff) > kInfinity) y[i] |= 0x40;
    }
  }

  EmbedDesc desc_;
  const numeric::EncodedMatrix& matrix_;
};

}  // namespace

const Impl<EmbedOp> kEmbedCpuPortable{
    .name = "cpu_portable",
    .backend = Backend::kCpu,
    .order = [](const EmbedDesc&) { return kEmbedOrder; },
    .layout = [](const EmbedDesc&) { return &kFileLayout; },
    .can_run =
        [](const EmbedDesc& desc, const DeviceCaps&) {
          return refuse_weight_only(desc.format, weight_only_lane(desc.format), desc.activation, desc.hidden);
        },
    .workspace_bytes = [](const EmbedDesc&, const Bucket&, MakeContext&) { return size_t{0}; },
    .make = [](const EmbedDesc& desc, const Bucket&, const EmbedOp::Weights& weights,
               MakeContext& context) -> Result<PlanPtr<EmbedOp>> {
      ASSAY_ASSIGN(const WeightSource* source, checked_table(context.weights, weights.table, desc));
      return PlanPtr<EmbedOp>(std::make_unique<EmbedCpuPortable>(desc, *source));
    },
};

}  // namespace assay::ops

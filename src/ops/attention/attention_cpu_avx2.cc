// attention with the fused block of attention_kernels_avx2.cc.
#include "ops/attention/attention_cpu_tiles.h"

namespace assay::ops {
namespace {

struct Avx2 {
  static constexpr const char* kName = "cpu_avx2";
  static constexpr std::string_view kOrder = "attention: sixteen lanes, fused, blocks of 64 positions";
  static constexpr const char* kMissing = "the CPU has no AVX2 with FMA and F16C";
  static constexpr int32_t kMultiple = 16;
  static constexpr AttentionElements kElements = AttentionElements::kMiddleQuadsSwapped;
  static bool has(const device::CpuFeatures& cpu) { return cpu.avx2; }
  static void block(const AttentionScratch& scratch, const AttentionRows& rows, const AttentionBlock& block) {
    attention_block_avx2(scratch, rows, block);
  }
};

}  // namespace

constinit const Impl<AttentionOp> kAttentionCpuAvx2 = attention_tiles<Avx2>();

}  // namespace assay::ops

// attention with the fused block of attention_kernels_avx512.cc.
#include "ops/attention/attention_cpu_tiles.h"

namespace assay::ops {
namespace {

struct Avx512 {
  static constexpr const char* kName = "cpu_avx512";
  static constexpr std::string_view kOrder = "attention: sixteen lanes, fused, blocks of 64 positions";
  static constexpr const char* kMissing = "the CPU has no AVX-512 with BW, VL, DQ, VBMI and VNNI";
  static constexpr int32_t kMultiple = 16;
  static constexpr AttentionElements kElements = AttentionElements::kAsInMemory;
  static bool has(const device::CpuFeatures& cpu) { return cpu.avx512; }
  static void block(const AttentionScratch& scratch, const AttentionRows& rows, const AttentionBlock& block) {
    attention_block_avx512(scratch, rows, block);
  }
};

}  // namespace

constinit const Impl<AttentionOp> kAttentionCpuAvx512 = attention_tiles<Avx512>();

}  // namespace assay::ops

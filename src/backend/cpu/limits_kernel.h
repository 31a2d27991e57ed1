// The loops that limits.h measures, by instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

namespace assay::cpu {

// `rounds` steps of 12 independent chains of sixteen lanes; FLOPs done.
double multiply_add_portable(int64_t rounds);
double multiply_add_avx2(int64_t rounds);
double multiply_add_avx512(int64_t rounds);
double dot_pairs_avx512_bf16(int64_t rounds);

// Reads every byte, 64 at a time; returns something made of them.
uint64_t read_portable(const std::byte* data, size_t bytes);
uint64_t read_avx2(const std::byte* data, size_t bytes);
uint64_t read_avx512(const std::byte* data, size_t bytes);

}  // namespace assay::cpu

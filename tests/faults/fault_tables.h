// The tables of faults, by op.
#pragma once

#include <vector>

#include "fault.h"

namespace assay::faults {

void add_linear_faults(std::vector<Entry>& list);
void add_experts_faults(std::vector<Entry>& list);
void add_router_faults(std::vector<Entry>& list);
void add_sequence_faults(std::vector<Entry>& list);  // qk_norm_rope, attention, conv_gates, gated_delta
void add_small_faults(std::vector<Entry>& list);     // embed, rms_norm, silu_mul, sample
void add_gpu_faults(std::vector<Entry>& list);       // with the CUDA backend

}  // namespace assay::faults

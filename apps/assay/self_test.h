// Faults in the program, where it was built with ASSAY_FAULTS=ON.
#pragma once

#include "base/result.h"
#include "engine/load.h"

namespace assay::app {

// Every fault, one after the other, on the ops of this model: what caught it and after how many runs. kNumerical when
// one was not caught.
Result<void> run_self_test(const engine::LoadOptions& options);

// ASSAY_FAULT=<op>:<part of a fault's name> puts that wrong row first. Also linear:crash, linear:hang, linear:one
// NaN and experts:five percent on one expert.
void install_fault_from_environment();

}  // namespace assay::app

// Faults in the program, where it was built with them: self_test.cc. A release has none: no_faults.cc.
#pragma once

#include "base/result.h"
#include "engine/load.h"

namespace assay::app {

struct Faults {
  // Every fault, one after the other, on the ops of this model: what caught it and after how many runs. kNumerical when
  // one was not caught.
  Result<void> (*run_self_test)(const engine::LoadOptions& options);

  // ASSAY_FAULT=<op>:<part of a fault's name> puts that wrong row first. Also linear:crash, linear:hang, linear:one
  // NaN and experts:five percent on one expert.
  void (*install_from_environment)();
};

const Faults* built_in_faults();  // null in a release

}  // namespace assay::app

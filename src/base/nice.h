// The nice value of threads: how much of busy cores the system gives them beside other processes.
#pragma once

#include "base/result.h"

namespace assay {

// Sets that of the calling thread, which threads that it starts from then on inherit. nice: -20 (most) to 19 (least).
// Errors: kInvalidArgument if the system does not permit the value, naming `flag`.
Result<void> set_nice(int nice, const char* flag);

}  // namespace assay

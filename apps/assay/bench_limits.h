// What `assay bench limits` measures, as JSON; benchmarks of the same run put their shares beside it.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "assay/command.h"
#include "backend/cpu/limits.h"

namespace assay::app {

nlohmann::ordered_json limits_json(const cpu::Limits& limits);
Command add_bench_limits(CLI::App& parent);

}  // namespace assay::app

// assay bench limits: what the device can do. `assay bench` puts the same figures of its own run beside its speeds.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "assay/command.h"
#include "backend/limits.h"

namespace assay::app {

nlohmann::ordered_json limits_json(const backend::Limits& limits);
Command add_bench_limits(CLI::App& parent);

}  // namespace assay::app

// The byte table of a config: what its weights, KV cache and recurrent state take, without loading or allocating any.
#pragma once

#include <string>

#include "base/result.h"
#include "checkpoint/dummy.h"

namespace assay::app {

// Prints bytes of the weights by class, stored and read for one token, KV cache bytes a token and state bytes a
// sequence, as a table or as one JSON object. `format`: which matrices are NVFP4. The draft head and the vision tower
// are left out.
Result<void> print_byte_table(const std::string& config_path, checkpoint::DummyFormat format, bool json);

}  // namespace assay::app

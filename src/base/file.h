// Whole files.
#pragma once

#include <string>

#include "base/result.h"

namespace assay {

// The bytes of a file. Errors: kIo, for a directory too.
Result<std::string> read_file(const std::string& path);

}  // namespace assay

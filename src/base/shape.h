// Shape: the sizes of a tensor, outermost first.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace assay {

using Shape = std::vector<int64_t>;

// "[3072, 256]"; a scalar is "[]".
std::string shape_text(const Shape& shape);

}  // namespace assay

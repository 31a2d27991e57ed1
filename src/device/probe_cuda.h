// Whether this binary holds machine code for a GPU.
#pragma once

namespace assay::device {

// False also when the GPU cannot be asked. Leaves no error behind.
bool cuda_code_present(int index);

}  // namespace assay::device

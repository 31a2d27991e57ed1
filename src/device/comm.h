// Comm: the ranks that share a model, and this one's place among them. One rank needs none: Launch::comm is null.
#pragma once

namespace assay::device {

struct Comm {
  int rank = 0;
  int size = 1;
};

}  // namespace assay::device

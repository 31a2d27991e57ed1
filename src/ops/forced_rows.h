// Rows that somebody pinned: `--force linear=reference`.
//
// A target is an op, "*" for every op that has such a row, or an op and a word of the Descs that are meant: "linear
// nvfp4". A pin with a word goes before one without.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace assay::ops {

class ForcedRows {
 public:
  // Errors: kInvalidArgument when op or row is unknown, or the target is forced to another row already.
  Result<void> add(std::string_view target, std::string_view row);

  // The row that a Desc is forced to; empty: none.
  std::string_view row(std::string_view op, std::string_view desc) const;

 private:
  struct Pin {
    std::string op, word, row;
  };
  Result<void> pin(std::string_view op, std::string_view word, std::string_view row);
  std::vector<Pin> pins_;
};

}  // namespace assay::ops

// The roofline picture of a benchmark: limits as lines, ops as numbered points with their names beside it.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "assay/bench_ops.h"

namespace assay::app {

struct Roof {
  double bytes_per_s = 0;
  double flop_per_s = 0;

  // The least time that the limits allow.
  double least_us(const ops::Work& work) const {
    return 1e6 * std::max(work.bytes / bytes_per_s, work.flops / flop_per_s);
  }
};

// An SVG document. Ops that only move bytes have no place in it: they show in the tables.
std::string roofline_svg(const std::string& title, const Roof& roof, const std::vector<OpTable>& tables);

}  // namespace assay::app

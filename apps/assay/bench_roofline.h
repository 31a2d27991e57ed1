// The roofline picture of a benchmark: limits as lines, ops as numbered points with their names beside it.
#pragma once

#include <string>
#include <vector>

#include "assay/bench_ops.h"

namespace assay::app {

// roof: the lines. Shares are those of each table's own limits. An SVG document. Ops that only move bytes have no place
// in it: they show in the tables.
std::string roofline_svg(const std::string& title, const Roof& roof, const std::vector<OpTable>& tables);

}  // namespace assay::app

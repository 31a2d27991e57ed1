// What assay bench found, for people and as JSON.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "assay/bench_ops.h"
#include "assay/bench_roofline.h"
#include "backend/limits.h"
#include "engine/load.h"

namespace assay::app {

struct PrefillSpeed {
  int32_t tokens = 0;
  double tokens_per_s = 0;
};

struct DecodeSpeed {
  int32_t context = 0;
  int32_t batch = 0;
  double tokens_per_s = 0;  // of all sequences together
  double step_us() const { return 1e6 * batch / tokens_per_s; }
};

struct BenchReport {
  engine::ModelSummary model;
  int32_t layers = 0;
  int32_t decode_tokens = 0;
  int32_t repeats = 0;
  std::vector<PrefillSpeed> prefill;
  std::vector<DecodeSpeed> decode;
  // With op tables only:
  std::vector<OpTable> tables;
  std::string only_op;     // the op to print; empty: all
  backend::Limits limits;  // the best of all
  Roof roof;
};

std::string report_text(const BenchReport& report);
std::string report_json(const BenchReport& report);

}  // namespace assay::app

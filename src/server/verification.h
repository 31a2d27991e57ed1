// What the proof found about the rows in use, as the server shows it. Text and numbers only: the server knows no rows.
#pragma once

#include <string>

namespace assay::server {

struct Verification {
  bool proven = false;
  std::string fingerprint;  // system_fingerprint of every response; empty: the one of the options
  std::string body;         // of GET /v1/verification, JSON
  double seconds = 0;       // that proving took at this start
  int rows_passed = 0, rows_failed = 0, rows_refused = 0, rows_skipped = 0;
};

// Prometheus' text format, to append to the other metrics.
std::string verification_metrics(const Verification& verification, const std::string& model_name);

}  // namespace assay::server

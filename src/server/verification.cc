#include "server/verification.h"

#include <fmt/format.h>

namespace assay::server {
namespace {

// In the quotes of a label.
std::string escaped(const std::string& text) {
  std::string result;
  for (char c : text) {
    if (c == '\\' || c == '"') result += '\\';
    result += c == '\n' ? ' ' : c;
  }
  return result;
}

}  // namespace

std::string verification_metrics(const Verification& v, const std::string& model_name) {
  const std::string name = escaped(model_name);
  std::string text =
      "# HELP assay:proof_seconds Time spent proving rows at this start\n# TYPE assay:proof_seconds gauge\n";
  text += fmt::format("assay:proof_seconds{{model_name=\"{}\"}} {}\n", name, v.seconds);
  text += "# HELP assay:proven 1 when every row in use passed its proof\n# TYPE assay:proven gauge\n";
  text += fmt::format("assay:proven{{model_name=\"{}\"}} {}\n", name, v.proven ? 1 : 0);
  text += "# HELP assay:rows Rows by what the proof says of them\n# TYPE assay:rows gauge\n";
  const auto rows = [&](const char* verdict, int count) {
    text += fmt::format("assay:rows{{model_name=\"{}\",verdict=\"{}\"}} {}\n", name, verdict, count);
  };
  rows("passed", v.rows_passed);
  rows("failed", v.rows_failed);
  rows("refused", v.rows_refused);
  rows("skipped", v.rows_skipped);
  return text;
}

}  // namespace assay::server

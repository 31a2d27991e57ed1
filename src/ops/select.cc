#include "ops/select.h"

namespace assay::ops {
Decision& Selector::entry(std::string_view op, std::string desc) {
  for (Decision& decision : decisions_) {
    if (decision.op == op && decision.desc == desc) return decision;
  }
  Decision& created = decisions_.emplace_back();
  created.op = op;
  created.desc = std::move(desc);
  return created;
}

Error Selector::none(const Decision& decision) {
  std::string reasons;
  for (const RowDecision& row : decision.rows) reasons += (reasons.empty() ? "" : "; ") + row.row + ": " + row.reason;
  return Error{ErrorKind::kUnsupported, "no row can run this op", decision.op + " " + decision.desc, reasons, "", ""};
}

std::string Selector::explain() const {
  std::string text;
  for (const Decision& decision : decisions_) {
    text += fmt::format("{:<16} {}\n", decision.op, decision.desc);
    for (const RowDecision& row : decision.rows) text += fmt::format("  {:<22} {}\n", row.row, row.reason);
  }
  return text;
}

}  // namespace assay::ops

#include "ops/select.h"

#include <algorithm>

#include "ops/all_ops.h"

namespace assay::ops {
namespace {

struct OpRows {
  std::string_view op;
  std::vector<std::string_view> rows;
};

std::vector<OpRows> all_rows() {
  std::vector<OpRows> list;
  for_each_op([&]<class Op>() {
    OpRows entry{Op::kName, {}};
    for (const auto* impl : rows<Op>()) entry.rows.emplace_back(impl->name);
    list.push_back(std::move(entry));
  });
  return list;
}

std::string join(const std::vector<std::string_view>& names) {
  std::string text;
  for (std::string_view name : names) text += (text.empty() ? "" : ", ") + std::string(name);
  return text;
}

bool has(const std::vector<std::string_view>& rows, std::string_view row) {
  return std::find(rows.begin(), rows.end(), row) != rows.end();
}

}  // namespace

Result<void> Selector::force(std::string_view op, std::string_view row) {
  const auto list = all_rows();
  bool known_row = false;
  for (const OpRows& entry : list) {
    if (op != "*" && op != entry.op) continue;
    if (!has(entry.rows, row)) {
      if (op == "*") continue;
      return Error{ErrorKind::kInvalidArgument,
                   "op has no such row",
                   "--force " + std::string(op) + "=" + std::string(row),
                   std::string(row),
                   "one of " + join(entry.rows),
                   ""};
    }
    known_row = true;
    const auto [position, inserted] = forced_.emplace(entry.op, row);
    if (!inserted && position->second != row) {
      return Error{ErrorKind::kInvalidArgument,
                   "op is forced to two rows",
                   "--force " + std::string(entry.op),
                   std::string(row),
                   position->second,
                   ""};
    }
  }
  if (known_row) return {};
  std::vector<std::string_view> ops;
  for (const OpRows& entry : list) ops.push_back(entry.op);
  return Error{ErrorKind::kInvalidArgument,
               "no op has such a row",
               "--force " + std::string(op) + "=" + std::string(row),
               std::string(op),
               "one of " + join(ops),
               ""};
}

Decision& Selector::entry(std::string_view op, std::string desc) {
  for (Decision& decision : decisions_) {
    if (decision.op == op && decision.desc == desc) return decision;
  }
  Decision& created = decisions_.emplace_back();
  created.op = op;
  created.desc = std::move(desc);
  return created;
}

std::string_view Selector::forced_row(std::string_view op) const {
  const auto found = forced_.find(op);
  return found == forced_.end() ? std::string_view{} : std::string_view(found->second);
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

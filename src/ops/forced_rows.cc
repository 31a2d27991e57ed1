#include "ops/forced_rows.h"

#include <algorithm>

#include <fmt/format.h>

#include "ops/all_ops.h"
#include "ops/row_list.h"

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

bool has_word(std::string_view text, std::string_view word) {
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    if (text.substr(at, end - at) == word) return true;
    at = end + 1;
  }
  return false;
}

}  // namespace

Result<void> ForcedRows::add(std::string_view target, std::string_view row) {
  const size_t space = target.find(' ');
  const std::string_view op = target.substr(0, space);
  const std::string_view word = space == std::string_view::npos ? "" : target.substr(space + 1);
  const auto list = all_rows();
  const auto refuse = [&](const std::string& what, std::string_view got, const std::string& wanted) {
    return Error{
        ErrorKind::kInvalidArgument, what, fmt::format("--force {}={}", target, row), std::string(got), wanted, ""};
  };
  bool known = false;
  for (const OpRows& entry : list) {
    if (op != "*" && op != entry.op) continue;
    if (has(entry.rows, row)) {
      known = true;
      ASSAY_TRY(pin(entry.op, word, row));
    } else if (op != "*") {
      return refuse("op has no such row", row, "one of " + join(entry.rows));
    }
  }
  if (known) return {};
  std::vector<std::string_view> ops;
  ops.reserve(list.size());
  for (const OpRows& entry : list) ops.push_back(entry.op);
  return refuse(op == "*" ? "no op has such a row" : "no such op", op == "*" ? row : op, "one of " + join(ops));
}

Result<void> ForcedRows::pin(std::string_view op, std::string_view word, std::string_view row) {
  for (const Pin& pinned : pins_) {
    if (pinned.op != op || pinned.word != word || pinned.row == row) continue;
    return Error{ErrorKind::kInvalidArgument,
                 "op is forced to two rows",
                 fmt::format("--force {}{}{}", op, word.empty() ? "" : " ", word),
                 std::string(row),
                 pinned.row,
                 ""};
  }
  pins_.push_back({std::string(op), std::string(word), std::string(row)});
  return {};
}

std::string_view ForcedRows::row(std::string_view op, std::string_view desc) const {
  std::string_view found;
  for (const Pin& pin : pins_) {
    if (pin.op != op) continue;
    if (!pin.word.empty() && has_word(desc, pin.word)) return pin.row;
    if (pin.word.empty()) found = pin.row;
  }
  return found;
}

}  // namespace assay::ops

#include "assay/bench_report.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "assay/bench_limits.h"

namespace assay::app {
namespace {

using Json = nlohmann::ordered_json;

std::vector<const OpTiming*> shown(const BenchReport& report, const OpTable& table) {
  std::vector<const OpTiming*> ops;
  for (const OpTiming& op : table.ops) {
    if (report.only_op.empty() || op.op == report.only_op) ops.push_back(&op);
  }
  return ops;
}

struct Calls {
  int64_t ops = 0, launches = 0;
};

Calls calls_of(const OpTable& table) {
  Calls sum;
  for (const OpTiming& op : table.ops) {
    sum.ops += op.calls;
    sum.launches += op.launches;
  }
  return sum;
}

std::string table_text(const BenchReport& report, const OpTable& table) {
  const Calls calls = calls_of(table);
  const double us = table.us(), least_us = table.least_us(), whole_us = table.whole_us();
  std::string text = fmt::format(
      "\n{}: {:.1f} tokens/s, {:.1f} us: {:.2f} of the limit\n"
      "its ops: {:.1f} us, the limits allow {:.1f} us: {:.2f} of the limit; {:.1f} calls a layer",
      table.title(), table.tokens_per_s, whole_us, least_us / whole_us, us, least_us, least_us / us,
      static_cast<double>(calls.ops) / report.layers);
  if (calls.launches > 0) text += fmt::format(", {:.1f} launches", static_cast<double>(calls.launches) / report.layers);
  text += fmt::format("\nlimits: {:.1f} GB/s ({}), {:.1f} GFLOP/s", table.roof.bytes_per_s / 1e9,
                      table.roof.bytes_per_s == table.limits.memory ? "memory" : "the weights fit in the cache",
                      table.roof.flop_per_s / 1e9);
  text += fmt::format("\n{:<13} {:<20} {:>5} {:>10} {:>7} {:>10} {:>8} {:>9} {:>7}  {}\n", "op", "row", "calls",
                      "us a call", "time", "KB a call", "GB/s", "GFLOP/s", "limit", "desc");
  for (const OpTiming* op : shown(report, table)) {
    const auto count = static_cast<double>(op->calls);
    text += fmt::format("{:<13} {:<20} {:>5} {:>10.2f} {:>6.1f}% {:>10.1f} {:>8.1f} {:>9.1f} {:>7.2f}  {}\n", op->op,
                        op->row, op->calls, op->us / count, 100 * op->us / us, op->work.bytes / count / 1e3,
                        op->work.bytes / op->us / 1e3, op->work.flops / op->us / 1e3,
                        table.roof.least_us(op->work) / op->us, op->desc);
  }
  return text;
}

Json table_json(const BenchReport& report, const OpTable& table) {
  const Calls calls = calls_of(table);
  const double us = table.us(), least_us = table.least_us();
  Json rows = Json::array();
  for (const OpTiming* op : shown(report, table)) {
    rows.push_back({{"op", op->op},
                    {"desc", op->desc},
                    {"row", op->row},
                    {"calls", op->calls},
                    {"launches", op->launches},
                    {"us_per_call", op->us / static_cast<double>(op->calls)},
                    {"share_of_time", op->us / us},
                    {"bytes_per_call", op->work.bytes / static_cast<double>(op->calls)},
                    {"flop_per_call", op->work.flops / static_cast<double>(op->calls)},
                    {"bytes_per_s", op->work.bytes / op->us * 1e6},
                    {"flop_per_s", op->work.flops / op->us * 1e6},
                    {"share_of_limit", table.roof.least_us(op->work) / op->us}});
  }
  return {{"phase", table.phase == ops::Phase::kPrefill ? "prefill" : "decode"},
          {"context", table.context},
          {"batch", table.batch},
          {"tokens_per_s", table.tokens_per_s},
          {"whole_us", table.whole_us()},
          {"us", us},
          {"least_us", least_us},
          {"whole_share_of_limit", least_us / table.whole_us()},
          {"share_of_limit", least_us / us},
          {"limits", limits_json(table.limits)},
          {"bytes_per_s_of_limit", table.roof.bytes_per_s},
          {"calls_per_layer", static_cast<double>(calls.ops) / report.layers},
          {"launches_per_layer", static_cast<double>(calls.launches) / report.layers},
          {"rows", std::move(rows)}};
}

Json ledger_json(const engine::Ledger& ledger) {
  Json lines = Json::array();
  for (const engine::LedgerLine& line : ledger.lines) {
    lines.push_back({{"what", line.what}, {"bytes", line.bytes}, {"detail", line.detail}});
  }
  return {{"bytes", ledger.total()},
          {"allowed_bytes", ledger.allowed_bytes},
          {"lines", std::move(lines)},
          {"changes", ledger.changes}};
}

}  // namespace

std::string report_text(const BenchReport& report) {
  std::string text = fmt::format("{}, {} threads; medians of {} timings after a warm-up\n", report.model.device,
                                 report.model.threads, report.repeats);
  text += fmt::format("\n{:>16}  {:>12}\n", "prefill tokens", "tokens/s");
  for (const PrefillSpeed& one : report.prefill)
    text += fmt::format("{:>16}  {:>12.1f}\n", one.tokens, one.tokens_per_s);
  text += fmt::format("\n{:>16}  {:>12}  {:>12}  {:>12}\n", "decode context", "sequences", "tokens/s", "us a step");
  for (const DecodeSpeed& one : report.decode) {
    text +=
        fmt::format("{:>16}  {:>12}  {:>12.1f}  {:>12.1f}\n", one.context, one.batch, one.tokens_per_s, one.step_us());
  }
  for (const OpTable& table : report.tables) text += table_text(report, table);
  return text;
}

std::string report_json(const BenchReport& report) {
  Json prefill = Json::array(), decode = Json::array();
  for (const PrefillSpeed& one : report.prefill) {
    prefill.push_back({{"tokens", one.tokens}, {"tokens_per_s", one.tokens_per_s}});
  }
  for (const DecodeSpeed& one : report.decode) {
    decode.push_back({{"context", one.context},
                      {"batch", one.batch},
                      {"tokens_per_s", one.tokens_per_s},
                      {"step_us", one.step_us()}});
  }
  Json out{{"prefill_tokens_per_s", report.prefill.front().tokens_per_s},
           {"decode_tokens_per_s", report.decode.front().tokens_per_s},
           {"threads", report.model.threads},
           {"machine", report.model.device},
           {"layers", report.layers},
           {"memory", ledger_json(report.model.ledger)},
           {"decode_tokens", report.decode_tokens},
           {"repeats", report.repeats},
           {"prefill", std::move(prefill)},
           {"decode", std::move(decode)}};
  if (!report.tables.empty()) {
    out["limits"] = limits_json(report.limits);
    out["bytes_per_s_of_limit"] = report.roof.bytes_per_s;
    Json ops = Json::array();
    for (const OpTable& table : report.tables) ops.push_back(table_json(report, table));
    out["ops"] = std::move(ops);
  }
  return out.dump();
}

}  // namespace assay::app

#include "proof/contact.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "proof/verdict_json.h"

namespace assay::proof {
namespace {

Verdict row(const std::string& name) {
  Verdict verdict;
  verdict.op = "linear";
  verdict.desc = "n=8 k=16";
  verdict.row = name;
  verdict.state = State::kPassed;
  return verdict;
}

class Collector : public KernelSink {
 public:
  bool wanted(std::string_view, const std::string&, std::string_view) override { return true; }
  void begin(std::string_view, const std::string&, std::string_view row) override { begun.emplace_back(row); }
  void done(Verdict verdict) override { verdicts.push_back(std::move(verdict)); }
  std::vector<std::string> begun;
  std::vector<Verdict> verdicts;
};

// A child in shell: passes every row but those whose names say otherwise.
ContactOptions child() {
  const std::string verdict = to_json(row("ROW")).dump();
  ContactOptions options;
  constexpr const char* kScript = R"sh(
    cat > "$LIST"
    while IFS="$(printf '\t')" read -r op desc row; do
      printf 'begin\t%s\t%s\t%s\n' "$op" "$desc" "$row"
      case "$row" in
        crash) kill -SEGV $$ ;;
        exit) exit 3 ;;
        hang) exec sleep 60 ;;
        chatty) echo "done something unrelated" ;;
      esac
      printf 'done\t%s\n' "$(printf '%s' "$VERDICT" | sed "s/ROW/$row/")"
    done < "$LIST")sh";
  options.command = {"/bin/sh", "-c", kScript};
  options.environment = {"VERDICT=" + verdict, "LIST=" + ::testing::TempDir() + "contact_list"};
  options.timeout_ms = 500;
  options.start_timeout_ms = 5000;
  return options;
}

std::vector<Verdict> prove(const std::vector<std::string>& names, const ContactOptions& options) {
  std::vector<Verdict> rows;
  for (const std::string& name : names) rows.push_back(row(name));
  Collector collector;
  contact_rows(rows, options, collector);
  EXPECT_EQ(collector.verdicts.size(), names.size());
  return collector.verdicts;
}

TEST(Contact, ACrashIsAVerdictAndTheRestGoesOn) {
  const auto verdicts = prove({"first", "crash", "second", "exit", "third"}, child());
  for (const Verdict& verdict : verdicts) {
    const bool bad = verdict.row == "crash" || verdict.row == "exit";
    EXPECT_EQ(verdict.state, bad ? State::kFailed : State::kPassed) << verdict.row << " " << verdict.reason;
    const std::string how = verdict.row == "crash" ? "crashed: signal 11" : verdict.row == "exit" ? "exit code 3" : "";
    EXPECT_NE(verdict.reason.find(how), std::string::npos) << verdict.reason;
  }
}

TEST(Contact, AHangIsAVerdictWithinItsTime) {
  const int64_t start = now_us();
  const auto verdicts = prove({"hang", "after"}, child());
  EXPECT_LT(now_us() - start, 10'000'000);
  EXPECT_EQ(verdicts[0].state, State::kFailed);
  EXPECT_NE(verdicts[0].reason.find("hung: no result within 500 ms"), std::string::npos) << verdicts[0].reason;
  EXPECT_EQ(verdicts[1].state, State::kPassed);
}

TEST(Contact, OtherOutputIsNotTakenForAVerdict) {
  const auto verdicts = prove({"chatty"}, child());
  EXPECT_EQ(verdicts[0].state, State::kPassed);
}

TEST(Contact, AChildThatNeverStartsFailsAllRows) {
  ContactOptions options = child();
  options.command = {"/nonexistent/program"};
  for (const Verdict& verdict : prove({"a", "b"}, options)) EXPECT_EQ(verdict.state, State::kFailed);
  options.command = {"/bin/false"};
  for (const Verdict& verdict : prove({"a", "b"}, options)) {
    EXPECT_EQ(verdict.state, State::kFailed);
    EXPECT_NE(verdict.reason.find("exit code 1"), std::string::npos) << verdict.reason;
  }
}

TEST(VerdictJson, RoundTripsAndRefusesDamage) {
  Verdict verdict = row("cpu_portable");
  verdict.bucket = {512, 64, 3};
  verdict.state = State::kFailed;
  verdict.reason = "sampled: y";
  verdict.worst = {INFINITY, ops::Evidence::kRepeats, "case: y[1, 2]", NAN, 2, 0.5};
  verdict.ratios[2] = 0.25;
  verdict.digest = 0xFFFFFFFFFFFFFFFFull;
  verdict.repeats = 7;
  const auto json = to_json(verdict);
  const auto back = verdict_from_json(json);
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(to_json(*back), json);
  EXPECT_EQ(back->digest, verdict.digest);
  EXPECT_EQ(back->worst.kind, ops::Evidence::kRepeats);
  for (const auto& [key, value] : json.items()) {
    if (key == "from_receipt") continue;
    auto damaged = json;
    damaged.erase(key);
    EXPECT_FALSE(verdict_from_json(damaged).has_value()) << key;
    damaged[key] = key == "timings" ? nlohmann::ordered_json::object() : nlohmann::ordered_json::array();
    EXPECT_FALSE(verdict_from_json(damaged).has_value()) << key;
  }
}

}  // namespace
}  // namespace assay::proof

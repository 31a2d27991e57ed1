#include "proof/certify.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "numeric/bf16.h"
#include "ops/linear/linear.h"
#include "proof/repro.h"
#include "proof/testing.h"

namespace assay::proof {
namespace {

using ops::LinearOp;

const ops::Impl<LinearOp>& portable() {
  for (const auto& impl : LinearOp::impls()) {
    if (std::string_view(impl.name) == "cpu_portable") return impl;
  }
  return LinearOp::impls().back();
}

// cpu_portable with every output times a factor.
template <int kPercent>
class Scaled : public ops::Plan<LinearOp::Args> {
 public:
  explicit Scaled(ops::PlanPtr<LinearOp> healthy) : healthy_(std::move(healthy)) {}
  void enqueue(const LinearOp::Args& args, const ops::Launch& launch) const override {
    healthy_->enqueue(args, launch);
    for (int64_t t = 0; t < args.y.rows; ++t) {
      for (int64_t n = 0; n < args.y.cols; ++n) {
        if (args.y.dtype == DType::kF32) {
          args.y.row<float>(t)[n] *= kPercent / 100.0f;
        } else {
          auto& y = args.y.row<numeric::Bf16>(t)[n];
          y = numeric::bf16_from_float(numeric::bf16_to_float(y) * (kPercent / 100.0f));
        }
      }
    }
  }

 private:
  ops::PlanPtr<LinearOp> healthy_;
};

template <int kPercent>
ops::Impl<LinearOp> scaled_row(const char* name) {
  ops::Impl<LinearOp> row = portable();
  row.name = name;
  row.order = [](const ops::LinearDesc&) { return ops::OrderId::kNone; };
  row.make = [](const ops::LinearDesc& desc, const ops::Bucket& bucket, const LinearOp::Weights& weights,
                ops::MakeContext& context) -> Result<ops::PlanPtr<LinearOp>> {
    ASSAY_ASSIGN(auto healthy, portable().make(desc, bucket, weights, context));
    return ops::PlanPtr<LinearOp>(std::make_unique<Scaled<kPercent>>(std::move(healthy)));
  };
  return row;
}

class Certify : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = ::testing::TempDir() + "certify_" + ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(directory_);
  }
  void TearDown() override { ops::test_rows<LinearOp>().clear(); }

  Result<Report> run(const CertifyOptions& options = {}) {
    Report report;
    Receipt receipt = Receipt::open(directory_, model_.device->caps(), report.notes);
    Certifier certifier(model_.instances, *model_.device, model_.weights, receipt, options);
    const Result<void> done = certifier.run(report);
    ASSAY_TRY(receipt.save());
    report.receipt_path = receipt.path();
    if (!done.ok()) return done.error();
    return report;
  }
  std::string chosen(const Report& report, const CertifyOptions& options = {}) {
    ops::Selector selector;
    if (!forced_.empty()) {
      EXPECT_TRUE(selector.force("linear", forced_).ok());
    }
    selector.set_judge(Certifier::judge(report, options));
    auto row = selector.row<LinearOp>(model_.instances.of<LinearOp>().front().desc, model_.device->caps());
    return row.ok() ? (*row)->name : "none: " + row.error().got;
  }

  static Verdict first_passed(const Report& report) {
    return *std::find_if(report.verdicts.begin(), report.verdicts.end(),
                         [](const Verdict& v) { return v.state == State::kPassed; });
  }

  testing::SmallModel model_{DType::kBf16, 1};
  std::string forced_;  // row of linear
  std::string directory_;
};

TEST_F(Certify, AWrongRowFirstInTheListIsPassedOverAndNamed) {
  const auto healthy = run();
  ASSERT_TRUE(healthy.ok());
  const std::string usual = chosen(*healthy);
  ops::test_rows<LinearOp>().push_back(scaled_row<105>("five_percent"));
  const auto report = run();
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(chosen(*report), usual);
  const std::string text = report_text(*report);
  EXPECT_NE(text.find("five_percent     failed"), std::string::npos) << text;
}

TEST_F(Certify, RowsOfOneOrderMustAgreeBitForBit) {
  ops::Impl<LinearOp> row = scaled_row<100>("same_bits");
  row.order = portable().order;
  ops::test_rows<LinearOp>().push_back(row);
  auto report = run();
  ASSERT_TRUE(report.ok());
  std::vector<Verdict> verdicts = report->verdicts;
  const auto mine =
      std::find_if(verdicts.begin(), verdicts.end(), [](const Verdict& v) { return v.row == "same_bits"; });
  mine->digest ^= 1;
  judge_orders(verdicts);
  EXPECT_EQ(mine->state, State::kFailed);
  EXPECT_NE(mine->reason.find("same order of additions"), std::string::npos);
}

TEST_F(Certify, AForcedRowIsProvenToo) {
  ops::test_rows<LinearOp>().push_back(scaled_row<105>("five_percent"));
  CertifyOptions options;
  ASSERT_TRUE(options.forced.add("linear", "five_percent").ok());
  forced_ = "five_percent";
  const auto refused = run(options);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().kind, ErrorKind::kNumerical);
  EXPECT_NE(refused.error().message().find("five_percent"), std::string::npos);
  options.allow_unproven = true;
  const auto allowed = run(options);
  ASSERT_TRUE(allowed.ok());
  EXPECT_EQ(chosen(*allowed, options), "five_percent");
}

// linear's portable row, but each run waits first: as right, and slower.
class Slow : public ops::Plan<LinearOp::Args> {
 public:
  explicit Slow(ops::PlanPtr<LinearOp> healthy) : healthy_(std::move(healthy)) {}
  void enqueue(const LinearOp::Args& args, const ops::Launch& launch) const override {
    usleep(20'000);
    healthy_->enqueue(args, launch);
  }

 private:
  ops::PlanPtr<LinearOp> healthy_;
};

TEST_F(Certify, AProvenRowThatIsSlowerIsNotChosenThoughFirstInTheList) {
  ops::Impl<LinearOp> row = scaled_row<100>("slow");
  row.make = [](const ops::LinearDesc& desc, const ops::Bucket& bucket, const LinearOp::Weights& weights,
                ops::MakeContext& context) -> Result<ops::PlanPtr<LinearOp>> {
    ASSAY_ASSIGN(auto healthy, portable().make(desc, bucket, weights, context));
    return ops::PlanPtr<LinearOp>(std::make_unique<Slow>(std::move(healthy)));
  };
  ops::test_rows<LinearOp>().push_back(row);
  const auto report = run();
  ASSERT_TRUE(report.ok());
  EXPECT_NE(chosen(*report), "slow");
  int seen = 0;
  for (const Verdict& v : report->verdicts) {
    if (v.row != "slow") continue;
    ++seen;
    EXPECT_EQ(v.state, State::kPassed) << v.reason;
    EXPECT_NE(v.passed_over.find("slower"), std::string::npos) << v.passed_over;
    ASSERT_EQ(v.timings.size(), 2u);
    EXPECT_LT(v.timings[0].tokens, v.timings[1].tokens);
    EXPECT_GE(v.timings[0].microseconds, 20'000);
  }
  EXPECT_EQ(seen, 4);
}

TEST_F(Certify, ASecondRunTakesEverythingFromTheReceiptAndChoosesTheSame) {
  const auto first = run();
  ASSERT_TRUE(first.ok());
  const auto second = run();
  ASSERT_TRUE(second.ok());
  for (const Verdict& v : second->verdicts) EXPECT_EQ(v.remembered, v.state == State::kPassed) << v.row;
  for (const WeightVerdict& w : second->weights) EXPECT_TRUE(w.remembered) << w.weight;
  ASSERT_EQ(first->verdicts.size(), second->verdicts.size());
  for (size_t i = 0; i < first->verdicts.size(); ++i) {
    EXPECT_EQ(first->verdicts[i].passed_over.empty(), second->verdicts[i].passed_over.empty());
  }
}

TEST_F(Certify, RowsThatAreSlowByIntentRunOnlyWhereNoOtherPasses) {
  const auto usual = run();
  ASSERT_TRUE(usual.ok());
  int skipped = 0;
  for (const Verdict& v : usual->verdicts) {
    EXPECT_EQ(v.state == State::kSkipped, v.row == "reference") << v.op << " " << v.row;
    skipped += v.state == State::kSkipped ? 1 : 0;
  }
  EXPECT_GT(skipped, 10);
  // Every other row of silu_mul has failed, says the receipt.
  std::vector<std::string> notes;
  Receipt receipt = Receipt::open(directory_, model_.device->caps(), notes);
  for (Verdict v : usual->verdicts) {
    if (v.op != "silu_mul" || v.row == "reference" || v.state != State::kPassed) continue;
    v.state = State::kFailed;
    v.reason = "said so";
    v.remembered = false;
    receipt.add(v, "normal");
  }
  ASSERT_TRUE(receipt.save().ok());
  const auto second = run();
  ASSERT_TRUE(second.ok());
  for (const Verdict& v : second->verdicts) {
    if (v.op != "silu_mul" || v.row != "reference") continue;
    EXPECT_EQ(v.state, State::kPassed) << v.reason;
    EXPECT_EQ(v.passed_over, "");
  }
}

TEST_F(Certify, WhatFailedIsRememberedWithItsReasonUntilItIsToBeTriedAgain) {
  ops::test_rows<LinearOp>().push_back(scaled_row<105>("five_percent"));
  ASSERT_TRUE(run().ok());
  ops::test_rows<LinearOp>().clear();
  ops::test_rows<LinearOp>().push_back(scaled_row<100>("five_percent"));  // repaired, unknown to the receipt
  CertifyOptions options;
  const auto row = [](const Result<Report>& report) {
    return *std::find_if(report->verdicts.begin(), report->verdicts.end(),
                         [](const Verdict& v) { return v.row == "five_percent"; });
  };
  const Verdict second = row(run(options));
  EXPECT_EQ(second.state, State::kFailed);
  EXPECT_TRUE(second.remembered);
  EXPECT_NE(second.reason.find("bound"), std::string::npos) << second.reason;
  options.retry_failed = true;
  EXPECT_EQ(row(run(options)).state, State::kPassed);
  options.retry_failed = false;
  const Verdict last = row(run(options));
  EXPECT_EQ(last.state, State::kPassed) << "the failure was kept beside the later pass: " << last.reason;
  EXPECT_TRUE(last.remembered);
}

TEST_F(Certify, MoreRepeatsThanTheReceiptKnowsAreRun) {
  ASSERT_TRUE(run().ok());
  CertifyOptions options;
  options.kernels.repeats = 6;
  options.kernels.row_budget_ms = 0;
  for (const bool remembered : {false, true}) {
    const auto report = run(options);
    ASSERT_TRUE(report.ok());
    for (const Verdict& v : report->verdicts) {
      if (v.state != State::kPassed) continue;
      EXPECT_EQ(v.repeats, 6) << v.op << " " << v.row;
      EXPECT_EQ(v.remembered, remembered) << v.op << " " << v.row;
    }
  }
}

TEST_F(Certify, DamagedForeignAndOldReceiptsAreIgnoredWithOneLine) {
  const auto first = run();
  ASSERT_TRUE(first.ok());
  std::ifstream file(first->receipt_path);
  const std::string good(std::istreambuf_iterator<char>(file), {});
  const auto with = [&](const std::string& text) {
    std::ofstream(first->receipt_path) << text;
    std::vector<std::string> notes;
    const Receipt receipt = Receipt::open(directory_, model_.device->caps(), notes);
    EXPECT_EQ(receipt.kernel(first_passed(*first), "normal"), nullptr);
    return notes.size() == 1 ? notes[0] : std::to_string(notes.size()) + " notes";
  };
  const auto replaced = [&](std::string from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    return text;
  };
  EXPECT_NE(with(good.substr(0, good.size() / 2)).find("damaged"), std::string::npos);
  EXPECT_NE(with("").find("damaged"), std::string::npos);
  EXPECT_NE(with(replaced("\"schema\": 2", "\"schema\": 3")).find("schema"), std::string::npos);
  EXPECT_NE(with(replaced("\"build\": \"", "\"build\": \"0")).find("another build"), std::string::npos);
  EXPECT_NE(with(replaced("\"machine\": \"", "\"machine\": \"x")).find("another machine"), std::string::npos);
  EXPECT_NE(with(replaced("\"repeats\": ", "\"repeats\": 1")).find("checksum"), std::string::npos);
  std::filesystem::remove(first->receipt_path);
  std::filesystem::create_directory(first->receipt_path);
  std::vector<std::string> notes;
  Receipt::open(directory_, model_.device->caps(), notes);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("damaged"), std::string::npos) << notes[0];
}

TEST_F(Certify, TwoProcessesKeepWhatEitherFound) {
  const auto report = run();
  ASSERT_TRUE(report.ok());
  std::vector<std::string> notes;
  Receipt a = Receipt::open(directory_, model_.device->caps(), notes);
  Receipt b = Receipt::open(directory_, model_.device->caps(), notes);
  Verdict other = first_passed(*report);
  other.row = "of a";
  other.remembered = false;
  a.add(other, "normal");
  other.row = "of b";
  b.add(other, "normal");
  ASSERT_TRUE(a.save().ok());
  ASSERT_TRUE(b.save().ok());
  const Receipt both = Receipt::open(directory_, model_.device->caps(), notes);
  EXPECT_NE(both.kernel(other, "normal"), nullptr);
  other.row = "of a";
  EXPECT_NE(both.kernel(other, "normal"), nullptr);
}

TEST_F(Certify, OfTwoProcessesAFailureOutweighsAPass) {
  const auto report = run();
  ASSERT_TRUE(report.ok());
  std::vector<std::string> notes;
  Verdict seen = first_passed(*report);
  seen.row = "seldom wrong";
  seen.remembered = false;
  for (const bool failure_last : {false, true}) {
    seen.desc = failure_last ? "last" : "first";
    Receipt a = Receipt::open(directory_, model_.device->caps(), notes);
    Receipt b = Receipt::open(directory_, model_.device->caps(), notes);
    seen.state = failure_last ? State::kPassed : State::kFailed;
    a.add(seen, "normal");
    seen.state = failure_last ? State::kFailed : State::kPassed;
    b.add(seen, "normal");
    ASSERT_TRUE(a.save().ok());
    ASSERT_TRUE(b.save().ok());
    const Receipt both = Receipt::open(directory_, model_.device->caps(), notes);
    ASSERT_NE(both.kernel(seen, "normal"), nullptr);
    EXPECT_EQ(both.kernel(seen, "normal")->state, State::kFailed);
  }
  seen.untried = true;
  seen.desc = "the child did not start";
  Receipt c = Receipt::open(directory_, model_.device->caps(), notes);
  c.add(seen, "normal");
  EXPECT_EQ(c.kernel(seen, "normal"), nullptr);
}

TEST_F(Certify, AChangedTensorIsNamed) {
  std::vector<std::string> notes;
  std::vector<ManifestTensor> tensors{{"a", 1}, {"b", 2}};
  EXPECT_TRUE(check_manifest(directory_, "model", tensors, false, notes).first_use);
  EXPECT_TRUE(check_manifest(directory_, "model", tensors, false, notes).changed.empty());
  tensors[1].hash = 3;
  EXPECT_EQ(check_manifest(directory_, "model", tensors, false, notes).changed, std::vector<std::string>{"b"});
  EXPECT_TRUE(check_manifest(directory_, "model", tensors, true, notes).changed.empty());
  EXPECT_TRUE(check_manifest(directory_, "model", tensors, false, notes).changed.empty());
  tensors.pop_back();
  EXPECT_EQ(check_manifest(directory_, "model", tensors, false, notes).changed, std::vector<std::string>{"b (gone)"});
  EXPECT_TRUE(notes.empty());
}

TEST_F(Certify, ThePublishersManifestComesBeforeTheKeptOne) {
  const std::string model = directory_ + "/model", published = model + "/assay-manifest.json";
  std::filesystem::create_directories(model);
  std::vector<std::string> notes;
  std::vector<ManifestTensor> tensors{{"a", 1}};
  const ManifestCheck kept = check_manifest(directory_, model, tensors, false, notes);
  ASSERT_TRUE(kept.first_use);
  std::filesystem::copy_file(kept.path, published);  // it may be published as it is
  const std::vector<std::string> changed{"a"};
  tensors[0].hash = 2;
  for (const char* receipts : {directory_.c_str(), ""}) {
    for (const bool accept : {false, true}) {  // only what was kept here may be replaced
      const ManifestCheck check = check_manifest(receipts, model, tensors, accept, notes);
      EXPECT_EQ(check.path, published);
      EXPECT_EQ(check.changed, changed);
    }
  }
  EXPECT_TRUE(notes.empty());
  std::ofstream(published) << "{";
  const ManifestCheck fallen_back = check_manifest(directory_, model, tensors, false, notes);
  EXPECT_EQ(fallen_back.path, kept.path);
  EXPECT_EQ(fallen_back.changed, changed);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find(published + ": ignored"), std::string::npos);
}

TEST_F(Certify, AManifestThatCannotBeKeptIsNotClaimed) {
  std::vector<std::string> notes;
  const ManifestCheck check = check_manifest("/proc/receipts", "model", {{"a", 1}}, false, notes);
  EXPECT_FALSE(check.first_use);
  EXPECT_TRUE(check.path.empty());
  EXPECT_EQ(notes.size(), 1u);
}

TEST_F(Certify, AFailureCanBeShownAgainFromItsFile) {
  ops::test_rows<LinearOp>().push_back(scaled_row<105>("five_percent"));
  const auto report = run();
  ASSERT_TRUE(report.ok());
  const auto paths = write_repros(directory_, model_.instances, report->verdicts, {});
  ASSERT_EQ(paths.size(), 4u);  // one for each Desc of linear
  const auto again = run_repro(paths[0], *model_.device);
  ASSERT_TRUE(again.ok()) << again.error().message();
  EXPECT_EQ(again->state, State::kFailed);
  ops::test_rows<LinearOp>().clear();
  const auto gone = run_repro(paths[0], *model_.device);
  ASSERT_FALSE(gone.ok());
  EXPECT_NE(gone.error().message().find("this build has no such row: got linear row five_percent"), std::string::npos);
  ops::test_rows<LinearOp>().push_back(scaled_row<100>("five_percent"));
  const auto repaired = run_repro(paths[0], *model_.device);
  ASSERT_TRUE(repaired.ok());
  EXPECT_EQ(repaired->state, State::kPassed) << repaired->reason;
  std::ofstream(paths[0]) << "{}";
  EXPECT_FALSE(run_repro(paths[0], *model_.device).ok());
  EXPECT_FALSE(run_repro(directory_, *model_.device).ok());
}

}  // namespace
}  // namespace assay::proof

// Every fault is caught before a model would serve, and the healthy rows beside it are not blamed.
#include <gtest/gtest.h>

#include "fault.h"
#include "proof/testing.h"

namespace assay::faults {
namespace {

TEST(Faults, EachIsCaught) {
  const std::vector<Entry> faults = all_faults();
  ASSERT_GE(faults.size(), 120u);
  for (const DType dtype : {DType::kBf16, DType::kF32}) {
    proof::testing::SmallModel model(dtype, 1);
    for (const Entry& entry : faults) {
      if (entry.gpu_only) continue;
      entry.install({});
      proof::KernelOptions options;
      options.row_budget_ms = 0;
      bool caught = false;
      std::string seen;
      for (const int repeats : {2, 8, 64}) {
        if (caught || (repeats > 2 && !entry.rare)) break;
        options.repeats = repeats;
        for (const proof::Verdict& verdict : proof::testing::prove(model, options, entry.op, "faulty")) {
          caught = caught || verdict.state == proof::State::kFailed;
          if (verdict.state == proof::State::kFailed && seen.empty()) {
            seen = fmt::format("{:<10} {:>4}  {}", ops::evidence_name(verdict.worst.kind), verdict.repeats,
                               verdict.reason.substr(0, 90));
          }
        }
      }
      entry.remove();
      EXPECT_TRUE(caught) << entry.op << ": " << entry.name << " " << dtype_name(dtype);
      std::printf("%-13s %-50s %s\n", entry.op.c_str(), entry.name.c_str(), seen.c_str());
    }
  }
}

}  // namespace
}  // namespace assay::faults

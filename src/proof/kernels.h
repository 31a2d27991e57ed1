// Kernel evidence: every row of every Desc of a model, run on made-up weights of the true shapes.
//
// Each row gets one plan for the largest bucket of its Desc and runs all cases of its op in chains: forwards, then
// backwards, so that every case follows others of other sizes on the same workspace. Outputs, pads and guard zones hold
// NaNs in one chain and 3.4e38 in the next. The first chain is judged against the bounds; all later ones must give the
// same bits.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "ops/instances.h"
#include "proof/verdict.h"

namespace assay::proof {

struct KernelOptions {
  bool full = false;
  int repeats = 4;            // chains, at least 2
  double row_budget_ms = 25;  // of repeats of one row: no new chain beyond (but always 2); 0: none
  uint64_t seed = 1;
  bool recorded = true;  // the second chain runs from recordings, where the device has them
};

// Who wants which verdicts, and hears of them. wanted() may be asked by two threads at once, and more than once of a
// row.
class KernelSink {
 public:
  virtual ~KernelSink() = default;
  virtual bool wanted(std::string_view op, const std::string& desc, std::string_view row) = 0;
  virtual void begin(std::string_view op, const std::string& desc, std::string_view row) = 0;
  virtual void done(Verdict verdict) = 0;
};

// In the order of ops, Descs as the model asks for them, rows as listed. Refusals are reported, not run. `weights`
// holds the model's own: used where made-up ones would take more than 64 MB.
void prove_kernels(const ops::Instances& instances, device::Device& device, ops::WeightProvider& weights,
                   const KernelOptions& options, KernelSink& sink);

// All rows, Descs and refusals in the same order, without running anything.
std::vector<Verdict> list_rows(const ops::Instances& instances, const device::DeviceCaps& caps);

}  // namespace assay::proof

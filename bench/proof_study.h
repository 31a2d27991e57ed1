// What the programs that measure the proof share: verdicts about one row of the ops at hand.
#pragma once

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "proof/kernels.h"

namespace assay::bench {

// Verdicts of the rows named `row`, of all rows if empty.
inline std::vector<proof::Verdict> prove(const ops::Instances& instances, device::Device& device,
                                         ops::WeightProvider& weights, const proof::KernelOptions& options,
                                         std::string_view op, std::string_view row) {
  class Sink : public proof::KernelSink {
   public:
    Sink(std::string_view op, std::string_view row) : op_(op), row_(row) {}
    bool wanted(std::string_view op, const std::string&, std::string_view row) override {
      return (op_.empty() || op_ == op) && (row_.empty() || row_ == row);
    }
    void begin(std::string_view, const std::string&, std::string_view) override {}
    void done(proof::Verdict verdict) override { verdicts.push_back(std::move(verdict)); }
    std::vector<proof::Verdict> verdicts;

   private:
    std::string_view op_, row_;
  };
  Sink sink(op, row);
  proof::prove_kernels(instances, device, weights, options, sink);
  return std::move(sink.verdicts);
}

}  // namespace assay::bench

// Certify: all evidence about the rows of a model before it serves, from the receipt or made now.
//
//   1. kernels: every row of every Desc, unknown ones in a child process (contact.h) where a command for it is given;
//   rows
//      that are slow by intent only where no other passes
//   2. orders: rows of one order id agree bit for bit
//   3. choice: of each Desc one of the rows that passed (choose.h)
//   4. weights: the chosen row on the model's own tensors, packed as they will serve: first, last and widest scale
//   range
//      of each Desc, all with `full`. A row that fails here is out, and the choice is made again.
// Then judge() tells a Selector what was chosen, and the engine adds the evidence about the whole model.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ops/instances.h"
#include "ops/select.h"
#include "proof/contact.h"
#include "proof/kernels.h"
#include "proof/receipt.h"
#include "proof/report.h"

namespace assay::proof {

struct CertifyOptions {
  KernelOptions kernels;
  std::string only_op, only_row;   // empty: all
  ops::ForcedRows forced;          // must pass
  bool allow_unproven = false;     // forced rows may fail
  bool retry_failed = false;       // rows that the receipt says failed are tried again
  size_t weight_memory_bytes = 0;  // for packed weights; 0: no limit
  std::vector<int32_t> text;  // whose embeddings are inputs of the evidence about weights; empty: random ones alone
  // What deeper layers see of it, each of root mean square 1; may be empty. Asked for once, after the rows.
  std::function<std::vector<std::vector<double>>()> deeper;
  ContactOptions contact;                            // no command: rows run in this process
  std::function<void(const std::string&)> progress;  // one line now and then

  bool whole() const { return only_op.empty() && only_row.empty(); }  // all rows are asked for: a choice can be made
};

class Certifier {
 public:
  // All must outlive this.
  Certifier(const ops::Instances& instances, device::Device& device, ops::WeightProvider& weights, Receipt& receipt,
            const CertifyOptions& options)
      : instances_(instances), device_(device), weights_(weights), receipt_(receipt), options_(options) {}

  // Errors: kNumerical when a forced row failed and allow_unproven is not set; naming op, Desc, row and reason.
  // kInvalidArgument where only_op or only_row is nothing that the model has.
  Result<void> run(Report& report);

  // For Selector::set_judge: why a row may not be chosen. Copies what it needs.
  static ops::Selector::Judge judge(const Report& report, const CertifyOptions& options);

 private:
  Result<void> check_asked() const;
  void prove_kernels(Report& report);
  bool needless(const Report& report, const Verdict& row) const;
  bool enough(const Verdict& known) const;
  void prove_rows(Report& report, const std::vector<size_t>& rows);
  void prove_skipped(Report& report, std::string_view op, const std::string& desc);
  void choose_and_prove_weights(Report& report);
  Result<void> check_forced(const Report& report) const;
  void say(const std::string& line) const {
    if (options_.progress) options_.progress(line);
  }

  const ops::Instances& instances_;
  device::Device& device_;
  ops::WeightProvider& weights_;
  Receipt& receipt_;
  const CertifyOptions& options_;
};

// Hash of a weight's bytes, scales and global scales.
uint64_t weight_hash(const ops::WeightSource& source);

}  // namespace assay::proof

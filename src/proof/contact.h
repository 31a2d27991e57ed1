// First contact: unknown rows run in a child process, so that a crash or a hang is a verdict and not an outage.
//
// The child is this program with another subcommand. It reads what it is to run from its standard input, one line each:
// op, Desc and row with tabs between, and answers on its standard output with the lines
//   begin<TAB>op<TAB>desc<TAB>row        before it touches a row
//   done<TAB>{verdict as JSON}
// When it dies after "begin", that row has failed and a new child gets the rest.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "proof/kernels.h"

namespace assay::proof {

struct ContactOptions {
  std::vector<std::string> command;      // program and arguments
  std::vector<std::string> environment;  // NAME=value, over the inherited one
  int64_t timeout_ms = 20'000;           // of one row
  int64_t start_timeout_ms = 120'000;    // until the first row begins
  std::function<void()> beside;          // done while the child works, in a thread that yields to it; may be empty
};

// Verdicts for `rows` (op, desc and row are read), in their order, each handed to `sink` when it is known.
void contact_rows(const std::vector<Verdict>& rows, const ContactOptions& options, KernelSink& sink);

// The child's side: what was asked for, and the sink that answers.
class ContactChild : public KernelSink {
 public:
  // Reads file descriptor 0 to its end, takes file descriptor 1 for itself, and asks to die with the parent.
  ContactChild();
  ~ContactChild() override;
  ContactChild(const ContactChild&) = delete;
  ContactChild& operator=(const ContactChild&) = delete;

  bool wanted(std::string_view op, const std::string& desc, std::string_view row) override;
  void begin(std::string_view op, const std::string& desc, std::string_view row) override;
  void done(Verdict verdict) override;

 private:
  void answer(const std::string& line) const;
  std::vector<std::string> wanted_;
  int out_ = -1;
};

}  // namespace assay::proof

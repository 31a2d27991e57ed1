// A subcommand: how main() finds and runs it. Each is one file.
#pragma once

#include <functional>

#include "assay/flags.h"
#include "base/result.h"

namespace assay::app {

struct Command {
  CLI::App* app = nullptr;
  std::function<Result<void>()> run;  // called when the command line named this subcommand and parsed
};

Command add_serve(CLI::App& parent);
Command add_chat(CLI::App& parent);
Command add_generate(CLI::App& parent);
Command add_perplexity(CLI::App& parent);
Command add_eval(CLI::App& parent);
Command add_inspect(CLI::App& parent);
Command add_bench(CLI::App& parent);
Command add_prove(CLI::App& parent);
Command add_prove_row(CLI::App& parent);
Command add_repro(CLI::App& parent);

}  // namespace assay::app

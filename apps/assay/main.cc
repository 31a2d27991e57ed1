// assay: reads the command line and runs one subcommand.
//
// Exit codes: 0 done, 1 failed, 2 wrong usage, 3 the checkpoint was refused.
#include <fmt/core.h>

#include <filesystem>
#include <string>

#include <CLI/CLI.hpp>

#include "assay/command.h"
#include "assay/self_test.h"

namespace {

enum ExitCode { kDone = 0, kFailed = 1, kUsage = 2, kCheckpointRefused = 3 };

ExitCode exit_code(assay::ErrorKind kind) {
  if (kind == assay::ErrorKind::kCheckpoint) return kCheckpointRefused;
  if (kind == assay::ErrorKind::kInvalidArgument) return kUsage;
  return kFailed;
}

// What every subcommand needs, checked before it runs: a directory, or a config.json of any name for dummy weights.
// None at all where the command line asks for none.
assay::Result<void> check_model_directory(const std::string& directory) {
  std::error_code ignored;
  if (directory.empty() || (directory.ends_with(".json") && std::filesystem::is_regular_file(directory, ignored))) {
    return {};
  }
  std::string what;
  if (!std::filesystem::is_directory(directory, ignored)) {
    what = "no such model directory";
  } else if (!std::filesystem::exists(std::filesystem::path(directory) / "config.json", ignored)) {
    what = "not a model directory: it has no config.json";
  }
  if (what.empty()) return {};
  return assay::Error{assay::ErrorKind::kCheckpoint, what, directory, "", "", ""};
}

assay::Result<void> run(const assay::app::Command& command) {
  ASSAY_TRY(check_model_directory(command.app->get_option("model")->as<std::string>()));
  return command.run();
}

}  // namespace

int main(int argc, char** argv) {
  if (const assay::app::Faults* faults = assay::app::built_in_faults()) faults->install_from_environment();
  CLI::App app("assay: a language model engine and server that checks its numbers", "assay");
  app.set_version_flag("--version", "assay " ASSAY_VERSION);
  app.require_subcommand(1);
  app.footer(
      "Every flag --some-flag can also be set as ASSAY_SOME_FLAG in the environment; the command line wins.\n"
      "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 the checkpoint was refused.");
  const assay::app::Command commands[] = {
      assay::app::add_serve(app),      assay::app::add_chat(app),  assay::app::add_generate(app),
      assay::app::add_perplexity(app), assay::app::add_eval(app),  assay::app::add_inspect(app),
      assay::app::add_bench(app),      assay::app::add_prove(app), assay::app::add_prove_row(app),
      assay::app::add_repro(app),
  };
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kDone : kUsage;
  }
  for (const assay::app::Command& command : commands) {
    if (!command.app->parsed()) continue;
    if (auto result = run(command); !result.ok()) {
      fmt::print(stderr, "assay {}: {}\n", command.app->get_name(), result.error().message());
      return exit_code(result.error().kind);
    }
  }
  return kDone;
}

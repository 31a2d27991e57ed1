// assay serve: the OpenAI-compatible server.
#include <fmt/core.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <semaphore>
#include <thread>

#include "assay/command.h"
#include "assay/session.h"
#include "server/server.h"
#include "text/chat_template.h"

namespace assay::app {
namespace {

constexpr int64_t kDrainUs = 30'000'000;

struct ServeOptions {
  CommonOptions common;
  std::string host = "127.0.0.1";
  uint16_t port = 8000;
  std::string served_model_name;
  int32_t max_queued_requests = scheduler::LoopOptions{}.max_queued;
  double request_timeout_s = 0;
};

// SIGTERM and SIGINT, taken by a thread of their own. Made before all other threads: they inherit the blocked signals.
// The first ends the program at once while the model loads and asks for a drain afterwards; the second ends it at once.
class StopSignals {
 public:
  StopSignals() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGTERM);
    sigaddset(&signals_, SIGINT);
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
    std::thread([signals = signals_, state = state_] {
      int signal = 0;
      sigwait(&signals, &signal);
      if (state->loading) _exit(0);
      state->first.release();
      sigwait(&signals, &signal);
      _exit(1);
    }).detach();
  }

  void loaded() { state_->loading = false; }
  void wait() { state_->first.acquire(); }

 private:
  struct State {
    std::atomic<bool> loading{true};
    std::binary_semaphore first{0};
  };
  sigset_t signals_ = {};
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

// The last part of the directory's name.
std::string default_model_name(const std::string& directory) {
  std::error_code ignored;
  const std::filesystem::path path = std::filesystem::canonical(directory, ignored);
  return ignored ? directory : path.filename().string();
}

server::ServerOptions server_options(const ServeOptions& options, const checkpoint::GenerationConfig& generation) {
  server::ServerOptions result;
  result.host = options.host;
  result.port = options.port;
  const std::string& directory = options.common.model_directory;
  result.model_id = options.served_model_name.empty() ? default_model_name(directory) : options.served_model_name;
  result.model_root = directory;
  result.version = ASSAY_VERSION;
  result.system_fingerprint = "assay-" ASSAY_VERSION;
  result.request_timeout_ms = std::llround(options.request_timeout_s * 1e3);
  result.sampling.do_sample = generation.do_sample.value_or(true);
  result.sampling.temperature = static_cast<float>(generation.temperature.value_or(1.0));
  result.sampling.top_k = static_cast<int32_t>(generation.top_k.value_or(0));
  result.sampling.top_p = static_cast<float>(generation.top_p.value_or(1.0));
  return result;
}

server::Verification verification(const proof::Report& report) {
  server::Verification shown;
  shown.proven = report.proven;
  shown.fingerprint = report.fingerprint;
  shown.body = proof::report_json(report);
  shown.seconds = report.seconds;
  for (const proof::Verdict& verdict : report.verdicts) {
    shown.rows_passed += verdict.state == proof::State::kPassed ? 1 : 0;
    shown.rows_failed += verdict.state == proof::State::kFailed ? 1 : 0;
    shown.rows_refused += verdict.state == proof::State::kRefused ? 1 : 0;
    shown.rows_skipped += verdict.state == proof::State::kSkipped ? 1 : 0;
  }
  return shown;
}

void announce(const std::string& host, uint16_t port) {
  const bool is_ipv6 = host.find(':') != std::string::npos;
  fmt::print("READY http://{}:{}\n", is_ipv6 ? "[" + host + "]" : host, port);
  std::fflush(stdout);
}

Result<void> run(const ServeOptions& options) {
  StopSignals signals;
  apply_log_level(options.common.log_level);
  const std::string& directory = options.common.model_directory;
  ASSAY_ASSIGN(const auto generation, checkpoint::load_generation_config(directory));
  Session session;  // before the server, which uses it until destroyed
  std::unique_ptr<text::ChatTemplate> chat_template;
  ASSAY_ASSIGN(const auto server, server::Server::start(server_options(options, generation)));
  log_info("listening on {}:{}, loading {}", options.host, server->port(), directory);
  ASSAY_ASSIGN(chat_template, text::ChatTemplate::load(directory));
  const Progress progress = [&server](const std::string& stage) { server->set_loading_progress(stage); };
  ASSAY_TRY(apply_nice(options.common.nice));  // after the server's thread is made: requests are read as before
  ASSAY_ASSIGN(session, open_session(options.common, options.max_queued_requests, progress));
  session.engine->warm_up();

  fmt::print(stderr, "{}", proof::report_text(session.engine->verification()));
  server->set_verification(verification(session.engine->verification()));

  server::Model model;
  model.tokenizer = session.tokenizer.get();
  model.chat_template = chat_template.get();
  model.loop = session.loop.get();
  model.stop_tokens = session.stop_tokens;
  model.context_tokens = session.loop->limits().context_tokens;
  server->set_ready(std::move(model));
  signals.loaded();
  announce(options.host, server->port());

  signals.wait();
  log_info("stopping: waiting up to {} s for requests to end", kDrainUs / 1'000'000);
  if (!server->drain(kDrainUs)) log_warning("stopping: requests that had not ended are cut off");
  server->stop();
  return {};
}

}  // namespace

Command add_serve(CLI::App& parent) {
  auto options = std::make_shared<ServeOptions>();
  options->common.log_level = "info";
  CLI::App& app =
      add_subcommand(parent, "serve", "Serve the OpenAI API; prints READY and the address once it can answer");
  add_common_options(app, options->common);
  add_nice(app, options->common.nice);
  options->common.proof.emplace();
  add_proof_flags(app, *options->common.proof);
  add_option(app, "--host", options->host, "Address to listen on; 0.0.0.0: all of IPv4").show_default();
  add_option(app, "--port", options->port, "Port to listen on; 0: any free one").show_default();
  add_option(app, "--served-model-name", options->served_model_name,
             "Name that clients ask for. Default: the last part of the model directory");
  add_option(app, "--max-queued-requests", options->max_queued_requests, "Requests that may wait; more get status 429")
      .range(0, 1 << 20)
      .show_default();
  add_option(app, "--request-timeout", options->request_timeout_s,
             "Seconds after its arrival at which a request is ended with status 504; 0: never")
      .range(0.0, 1e6)
      .show_default();
  return {&app, [options] { return run(*options); }};
}

}  // namespace assay::app

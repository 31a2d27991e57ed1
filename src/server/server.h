// The OpenAI-compatible server.
//
//   POST /v1/chat/completions, /v1/completions, /tokenize, /detokenize, /apply-template    503 until set_ready, and
//   GET /v1/models, /v1/models/{id}                                                        while draining
//   GET /health                  alive: always 200                  GET /ready: 200 between set_ready and drain
//   GET /v1/verification         what is proven of the rows in use; 503 until then
//   GET /metrics                 Prometheus' text format            GET /: what there is
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "server/model.h"
#include "server/server_options.h"
#include "server/verification.h"

namespace assay::server {

// Public members may be called from any thread, stop() and the destructor by the owner.
class Server {
 public:
  using Model = server::Model;

  // Binds and answers at once: alive, not ready. Errors as HttpServer::start.
  static Result<std::unique_ptr<Server>> start(const ServerOptions& options);
  ~Server();  // stop()
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  void set_loading_progress(std::string progress);   // shown as error.progress of the 503s
  void set_verification(Verification verification);  // before set_ready
  void set_ready(Model model);
  uint16_t port() const;

  // From now on not ready, and new API requests get 503. Returns when all running ones are answered entirely (true) or
  // the time is over (false).
  bool drain(int64_t timeout_us);

  // Cuts every connection, cancels their requests, joins all threads. The loop may still run. Idempotent.
  void stop();

 private:
  struct State;
  explicit Server(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace assay::server

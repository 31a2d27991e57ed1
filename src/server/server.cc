#include "server/server.h"

#include <algorithm>
#include <atomic>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <chrono>
#include <mutex>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "base/log.h"
#include "server/api_error.h"
#include "server/chat_run.h"
#include "server/completion_run.h"
#include "server/info_response.h"
#include "server/metrics.h"
#include "server/text_endpoints.h"

namespace assay::server {

namespace {

constexpr std::string_view kModelsPrefix = "/v1/models/";
using Writer = std::shared_ptr<ResponseWriter>;
using ModelPtr = std::shared_ptr<const Model>;

int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// %XX decoded; what is not well-formed stays.
std::string decode_percent(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size()) {
      const int high = hex_digit(text[i + 1]), low = hex_digit(text[i + 2]);
      if (high >= 0 && low >= 0) {
        out += static_cast<char>(high * 16 + low);
        i += 2;
        continue;
      }
    }
    out += text[i];
  }
  return out;
}

void send_json(const Writer& writer, std::string body) {
  HttpResponse response;
  response.body = std::move(body);
  writer->send(std::move(response));
}

}  // namespace

struct Server::State {
  explicit State(const ServerOptions& server_options) : metrics(server_options.model_id) {
    context.options = server_options;
    context.metrics = &metrics;
    context.draining = [this] { return draining.load(); };
  }

  // Destroyed last to first: the pool's tasks hold writers of http, and runs refer to context.
  Metrics metrics;
  RunContext context;
  std::atomic<bool> draining = false;
  std::mutex mutex;  // guards model, progress and verification
  ModelPtr model;
  std::string progress;
  std::optional<Verification> verification;
  const int64_t created = unix_seconds();
  std::unique_ptr<HttpServer> http;
  std::unique_ptr<boost::asio::thread_pool> pool;

  struct Route {
    std::string_view path;  // one that ends with '/' stands for all below it
    std::string_view method;
    bool needs_model;
    void (State::*run)(HttpRequest&, const Writer&, const ModelPtr&);
  };
  static const std::vector<Route>& routes();

  ModelPtr loaded_model() {
    const std::lock_guard lock(mutex);
    return model;
  }
  std::optional<ApiError> why_unavailable();
  void handle(HttpRequest request, const Writer& writer);
  template <class Run>
  void generate(HttpRequest& request, const Writer& writer, const ModelPtr& loaded);
  using TextEndpoint = MaybeError(std::string_view, const server::Model&, const ServerOptions&, std::string&);
  template <TextEndpoint* Endpoint>
  void handle_text(HttpRequest& request, const Writer& writer, const ModelPtr& loaded);
  void models(HttpRequest& request, const Writer& writer, const ModelPtr& loaded);
  void one_model(HttpRequest& request, const Writer& writer, const ModelPtr& loaded);
  void health(HttpRequest& request, const Writer& writer, const ModelPtr& loaded);
  void ready(HttpRequest& request, const Writer& writer, const ModelPtr& loaded);
  void show_verification(HttpRequest& request, const Writer& writer, const ModelPtr& loaded);
  std::optional<Verification> known_verification() {
    const std::lock_guard lock(mutex);
    return verification;
  }
  void metrics_text(HttpRequest& request, const Writer& writer, const ModelPtr& loaded);
  void root(HttpRequest& request, const Writer& writer, const ModelPtr& loaded);
};

const std::vector<Server::State::Route>& Server::State::routes() {
  static const std::vector<Route> routes = {
      {"/v1/chat/completions", "POST", true, &State::generate<ChatRun>},
      {"/v1/completions", "POST", true, &State::generate<CompletionRun>},
      {"/tokenize", "POST", true, &State::handle_text<tokenize>},
      {"/v1/tokenize", "POST", true, &State::handle_text<tokenize>},
      {"/detokenize", "POST", true, &State::handle_text<detokenize>},
      {"/v1/detokenize", "POST", true, &State::handle_text<detokenize>},
      {"/apply-template", "POST", true, &State::handle_text<apply_template>},
      {"/v1/models", "GET", true, &State::models},
      {kModelsPrefix, "GET", true, &State::one_model},
      {"/v1/verification", "GET", true, &State::show_verification},
      {"/health", "GET", false, &State::health},
      {"/ready", "GET", false, &State::ready},
      {"/metrics", "GET", false, &State::metrics_text},
      {"/", "GET", false, &State::root},
  };
  return routes;
}

std::optional<ApiError> Server::State::why_unavailable() {
  if (draining.load()) return unavailable("The server is shutting down");
  const std::lock_guard lock(mutex);
  if (model) return {};
  ApiError error = unavailable("Loading model");
  error.progress = progress;
  return error;
}

void Server::State::handle(HttpRequest request, const Writer& writer) {
  const std::string path(request.path());
  const auto found = std::find_if(routes().begin(), routes().end(), [&](const Route& route) {
    const bool is_tree = route.path.size() > 1 && route.path.back() == '/';
    return is_tree ? path.size() > route.path.size() && path.starts_with(route.path) : path == route.path;
  });
  if (found == routes().end()) {
    ApiError error;
    error.status = 404;
    error.type = "not_found_error";
    error.message = "There is nothing at " + path;
    error.code = "not_found";
    return writer->send(error_response(error));
  }
  const std::string allow = found->method == "GET" ? "GET, HEAD, OPTIONS" : "POST, OPTIONS";
  if (request.method == "OPTIONS") {
    HttpResponse response;
    response.status = 204;
    response.content_type.clear();
    response.headers = {{"Allow", allow}};
    return writer->send(std::move(response));
  }
  if (request.method != found->method && !(request.method == "HEAD" && found->method == "GET")) {
    ApiError error;
    error.status = 405;
    error.message = request.method + " is not allowed at " + path;
    error.code = "method_not_allowed";
    error.allow = allow;
    return writer->send(error_response(error));
  }
  if (found->needs_model) {
    if (const auto error = why_unavailable()) return writer->send(error_response(*error));
  }
  (this->*found->run)(request, writer, loaded_model());
}

template <class Run>
void Server::State::generate(HttpRequest& request, const Writer& writer, const ModelPtr& loaded) {
  std::make_shared<Run>(context, loaded, writer)->start(std::move(request.body));
}

template <Server::State::TextEndpoint* Endpoint>
void Server::State::handle_text(HttpRequest& request, const Writer& writer, const ModelPtr& loaded) {
  context.post_text([this, body = std::move(request.body), writer, loaded] {
    std::string reply;
    if (const auto refused = Endpoint(body, *loaded, context.options, reply)) {
      writer->send(error_response(*refused));
    } else {
      send_json(writer, std::move(reply));
    }
  });
}

void Server::State::models(HttpRequest&, const Writer& writer, const ModelPtr& loaded) {
  send_json(writer, models_body(context.options, created, loaded->context_tokens));
}

void Server::State::one_model(HttpRequest& request, const Writer& writer, const ModelPtr& loaded) {
  const std::string name = decode_percent(request.path().substr(kModelsPrefix.size()));
  const auto& aliases = context.options.aliases;
  if (name != context.options.model_id && std::find(aliases.begin(), aliases.end(), name) == aliases.end()) {
    ApiError error;
    error.status = 404;
    error.type = "not_found_error";
    error.message = "The model " + name + " does not exist";
    error.param = "model";
    error.code = "model_not_found";
    return writer->send(error_response(error));
  }
  send_json(writer, model_body(context.options, name, created, loaded->context_tokens));
}

void Server::State::health(HttpRequest&, const Writer& writer, const ModelPtr&) {
  const auto known = known_verification();
  send_json(writer, status_body(known && !known->proven ? "alive, unproven" : "alive"));
}

void Server::State::show_verification(HttpRequest&, const Writer& writer, const ModelPtr&) {
  const auto known = known_verification();
  send_json(writer, known ? known->body : "{\"proven\":false}");
}

void Server::State::ready(HttpRequest&, const Writer& writer, const ModelPtr&) {
  if (const auto error = why_unavailable()) return writer->send(error_response(*error));
  send_json(writer, status_body("ready"));
}

void Server::State::metrics_text(HttpRequest&, const Writer& writer, const ModelPtr& loaded) {
  HttpResponse response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  if (loaded) {
    const scheduler::LoopStats stats = loaded->loop->stats();
    response.body = metrics.text(&stats);
  } else {
    response.body = metrics.text(nullptr);
  }
  if (const auto known = known_verification()) {
    response.body += verification_metrics(*known, context.options.model_id);
  }
  writer->send(std::move(response));
}

void Server::State::root(HttpRequest&, const Writer& writer, const ModelPtr&) {
  std::vector<std::string> endpoints;
  for (const Route& route : routes()) {
    const bool is_tree = route.path.size() > 1 && route.path.back() == '/';
    endpoints.push_back(std::string(route.path) + (is_tree ? "{id}" : ""));
  }
  send_json(writer, root_body(context.options, endpoints));
}

Server::Server(std::unique_ptr<State> state) : state_(std::move(state)) {}
Server::~Server() { stop(); }

Result<std::unique_ptr<Server>> Server::start(const ServerOptions& options) {
  auto state = std::make_unique<State>(options);
  State* raw = state.get();
  state->pool = std::make_unique<boost::asio::thread_pool>(std::max(options.text_threads, 1));
  state->context.post_text = [raw](std::function<void()> task) { boost::asio::post(*raw->pool, std::move(task)); };
  HttpOptions http = options.http;
  http.host = options.host;
  http.port = options.port;
  http.on_response = [raw](int status) { raw->metrics.count_response(status); };
  // Requests may arrive before what follows is done; none touches it before set_ready.
  ASSAY_ASSIGN(state->http, HttpServer::start(http, [raw](HttpRequest request, const Writer& writer) {
                 raw->handle(std::move(request), writer);
               }));
  state->context.post_io = [raw](std::function<void()> task) { raw->http->post(std::move(task)); };
  state->context.outbox = std::make_shared<Outbox>(state->context.post_io);
  return std::unique_ptr<Server>(new Server(std::move(state)));
}

void Server::set_loading_progress(std::string progress) {
  const std::lock_guard lock(state_->mutex);
  state_->progress = std::move(progress);
}

void Server::set_verification(Verification verification) {
  const std::lock_guard lock(state_->mutex);
  CHECK(!state_->model, "requests may already show the old fingerprint");
  if (!verification.fingerprint.empty()) state_->context.options.system_fingerprint = verification.fingerprint;
  state_->verification = std::move(verification);
}

void Server::set_ready(Model model) {
  CHECK(model.tokenizer && model.chat_template && model.loop && model.context_tokens > 0, "incomplete model");
  const std::lock_guard lock(state_->mutex);
  state_->model = std::make_shared<const server::Model>(std::move(model));
}

uint16_t Server::port() const { return state_->http->port(); }

bool Server::drain(int64_t timeout_us) {
  const int64_t deadline = now_us() + timeout_us;
  state_->draining = true;
  const auto model = state_->loaded_model();
  bool done = !model || model->loop->drain(timeout_us);
  // The loop is done; the last bytes may not be.
  while (state_->http->open_responses() > 0 && now_us() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return done && state_->http->open_responses() == 0;
}

void Server::stop() {
  if (!state_->pool) return;
  state_->draining = true;  // no request reaches the pool any more
  state_->pool->join();
  state_->http->stop();
  state_->context.outbox->close();
  // Answers that were being put together when the connections were cut.
  state_->pool.reset();
}

}  // namespace assay::server

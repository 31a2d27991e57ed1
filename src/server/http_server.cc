#include "server/http_server.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/core/string.hpp>
#include <future>
#include <thread>

#include "base/log.h"
#include "server/http_session.h"

namespace assay::server {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

std::string_view HttpRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (boost::beast::iequals({key.data(), key.size()}, {name.data(), name.size()})) return value;
  }
  return {};
}

std::string_view HttpRequest::path() const { return std::string_view(target).substr(0, target.find_first_of("?#")); }

struct HttpServer::State {
  HttpShared shared;
  tcp::acceptor acceptor{shared.io};
  asio::steady_timer retry{shared.io};
  asio::executor_work_guard<asio::io_context::executor_type> work{shared.io.get_executor()};
  std::thread thread;
  uint16_t port = 0;
  bool stopping = false;  // IO thread

  void accept() {
    acceptor.async_accept([this](const error_code& error, tcp::socket socket) {
      if (stopping) return;
      if (error) {  // out of file descriptors, mostly: others may be given back
        log_warning("cannot accept a connection: {}", error.message());
        retry.expires_after(std::chrono::milliseconds(100));
        retry.async_wait([this](const error_code& cancelled) {
          if (!cancelled && !stopping) accept();
        });
        return;
      }
      if (shared.sessions.size() < shared.options.max_connections) {
        auto session = std::make_shared<HttpSession>(shared, std::move(socket));
        shared.sessions.insert(session);
        session->start();
      }
      accept();
    });
  }

  void cut_all() {
    stopping = true;
    error_code ignored;
    acceptor.close(ignored);
    retry.cancel();
    const auto sessions = shared.sessions;  // close() takes them out
    for (const auto& session : sessions) session->close();
    work.reset();
  }
};

HttpServer::HttpServer(std::unique_ptr<State> state) : state_(std::move(state)) {}
HttpServer::~HttpServer() { stop(); }

Result<std::unique_ptr<HttpServer>> HttpServer::start(const HttpOptions& options, HttpHandler handler) {
  error_code error;
  const auto address = asio::ip::make_address(options.host == "localhost" ? "127.0.0.1" : options.host, error);
  if (error) {
    return Error{ErrorKind::kInvalidArgument,
                 "not an address to listen on",
                 "--host",
                 options.host,
                 "a numeric IPv4 or IPv6 address, or localhost",
                 ""};
  }
  auto state = std::make_unique<State>();
  state->shared.options = options;
  state->shared.handler = std::move(handler);
  const tcp::endpoint endpoint(address, options.port);
  auto& acceptor = state->acceptor;
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(asio::socket_base::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error) {
    const bool taken = error == asio::error::address_in_use;
    return Error{ErrorKind::kIo,
                 taken ? "the port is in use" : "cannot listen: " + error.message(),
                 fmt::format("{}:{}", options.host, options.port),
                 "",
                 "",
                 taken ? "stop the other program or choose another --port; 0 takes any free one" : ""};
  }
  state->port = acceptor.local_endpoint(error).port();
  state->accept();
  state->thread = std::thread([raw = state.get()] { raw->shared.io.run(); });
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(state)));
}

uint16_t HttpServer::port() const { return state_->port; }
void HttpServer::post(std::function<void()> task) { asio::post(state_->shared.io, std::move(task)); }
int HttpServer::open_responses() const { return state_->shared.open_responses.load(); }

void HttpServer::stop() {
  if (!state_->thread.joinable()) return;
  asio::post(state_->shared.io, [this] { state_->cut_all(); });
  state_->thread.join();
}

}  // namespace assay::server

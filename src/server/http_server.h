// HTTP/1.1 over plain TCP: a listener, its connections, and the interface handlers see. No handler knows the library.
//
// One IO thread runs everything: the handler is called on it, and must hand long work elsewhere. A connection carries
// one request at a time; requests sent ahead wait in its buffer. While a request is being answered the socket is still
// read, so a client that leaves is noticed at once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace assay::server {

using Headers = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;
  std::string target;  // path and query as sent
  Headers headers;
  std::string body;

  std::string_view header(std::string_view name) const;  // any case; empty if absent
  std::string_view path() const;                         // target without its query
};

struct HttpResponse {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  Headers headers;
};

// The answer to one request: send() once, or begin_stream(), write() any number of times, end(). Any thread may call;
// calls of one thread keep their order. After a disconnect calls do nothing. A writer dropped before its answer is
// complete answers 500, or cuts the connection if the head has gone out.
class ResponseWriter {
 public:
  virtual ~ResponseWriter() = default;
  virtual void send(HttpResponse response) = 0;
  // `response.body` is the first piece. `idle_text` is written whenever nothing else was for `idle_interval_ms`.
  virtual void begin_stream(HttpResponse response, std::string idle_text, int64_t idle_interval_ms) = 0;
  virtual void write(std::string data) = 0;
  virtual void end() = 0;
  // Called once on the IO thread if the client leaves, or reads too slowly, before the answer is complete; at once if
  // it has left already. Replaces the callback set before; an empty one removes it.
  virtual void on_disconnect(std::function<void()> callback) = 0;
};

using HttpHandler = std::function<void(HttpRequest, std::shared_ptr<ResponseWriter>)>;

struct HttpOptions {
  std::string host = "127.0.0.1";  // a numeric address, or localhost
  uint16_t port = 8000;            // 0: any free one
  size_t max_body_bytes = size_t{32} << 20;
  size_t max_header_bytes = size_t{64} << 10;
  size_t max_unsent_bytes = size_t{16} << 20;  // a stream whose client lags by more is cut
  size_t max_connections = 4096;
  int64_t idle_timeout_ms = 75'000;             // between requests
  int64_t read_timeout_ms = 60'000;             // without progress within a request
  int64_t write_timeout_ms = 60'000;            // without progress within an answer
  std::function<void(int status)> on_response;  // called on the IO thread for each answer
};

class HttpServer {
 public:
  // Binds and serves at once. kIo: the port is taken; kInvalidArgument: the address is none.
  static Result<std::unique_ptr<HttpServer>> start(const HttpOptions& options, HttpHandler handler);
  ~HttpServer();  // stop()
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  uint16_t port() const;
  void post(std::function<void()> task);  // runs on the IO thread, in order
  int open_responses() const;             // requests read whose answer has not been sent entirely

  // Cuts every connection (on_disconnect callbacks run) and joins the IO thread once posted tasks are done. Idempotent.
  void stop();

 private:
  struct State;
  explicit HttpServer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace assay::server

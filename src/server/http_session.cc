#include "server/http_session.h"

#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/field.hpp>
#include <boost/beast/http/rfc7230.hpp>
#include <boost/beast/http/status.hpp>
#include <ctime>

#include "base/clock.h"
#include "base/log.h"
#include "server/api_error.h"

namespace assay::server {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

namespace {

constexpr size_t kReadBytes = size_t{64} << 10;
constexpr size_t kReadAheadBytes = size_t{256} << 10;  // of requests sent ahead; more waits in the kernel
constexpr size_t kMaxRequestIdBytes = 256;             // longer ones are not echoed
constexpr int64_t kLingerMs = 5'000;

std::string http_date() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[64];
  const size_t length = std::strftime(text, sizeof(text), "%a, %d %b %Y %H:%M:%S GMT", &utc);
  return std::string(text, length);
}

class SessionWriter : public ResponseWriter {
 public:
  SessionWriter(std::shared_ptr<HttpSession> session, uint64_t serial)
      : session_(std::move(session)), serial_(serial) {}
  // Posted, never run at once: on the IO thread it would overtake the calls that another thread has posted.
  ~SessionWriter() override {
    asio::post(session_->io(), [session = session_, serial = serial_] { session->abandon(serial); });
  }
  void send(HttpResponse response) override {
    on_io([response = std::move(response)](HttpSession& session, uint64_t serial) { session.send(serial, response); });
  }
  void begin_stream(HttpResponse response, std::string idle_text, int64_t idle_interval_ms) override {
    on_io([response = std::move(response), idle_text = std::move(idle_text), idle_interval_ms](
              HttpSession& session, uint64_t serial) mutable {
      session.begin_stream(serial, response, std::move(idle_text), idle_interval_ms);
    });
  }
  void write(std::string data) override {
    on_io([data = std::move(data)](HttpSession& session, uint64_t serial) { session.write(serial, data); });
  }
  void end() override {
    on_io([](HttpSession& session, uint64_t serial) { session.end(serial); });
  }
  void on_disconnect(std::function<void()> callback) override {
    on_io([callback = std::move(callback)](HttpSession& session, uint64_t serial) mutable {
      session.set_on_disconnect(serial, std::move(callback));
    });
  }

 private:
  template <class Task>
  void on_io(Task task) {
    asio::dispatch(session_->io(), [session = session_, serial = serial_, task = std::move(task)]() mutable {
      task(*session, serial);
    });
  }
  std::shared_ptr<HttpSession> session_;
  uint64_t serial_;
};

}  // namespace

HttpSession::HttpSession(HttpShared& shared, asio::ip::tcp::socket socket)
    : shared_(shared), socket_(std::move(socket)), deadline_(shared.io), idle_(shared.io) {}

void HttpSession::start() {
  error_code ignored;
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  reset_parser();
  arm_deadline(shared_.options.idle_timeout_ms);
  read();
}

void HttpSession::close() {
  if (state_ == State::kClosed) return;
  if (state_ == State::kAnswering) shared_.open_responses.fetch_sub(1);
  state_ = State::kClosed;
  error_code ignored;
  socket_.close(ignored);
  deadline_.cancel();
  idle_.cancel();
  auto self = shared_from_this();
  shared_.sessions.erase(self);
  if (auto callback = std::exchange(on_disconnect_, nullptr)) callback();
}

void HttpSession::reset_parser() {
  parser_.emplace();
  parser_->eager(true);
  parser_->body_limit(shared_.options.max_body_bytes);
  parser_->header_limit(static_cast<uint32_t>(shared_.options.max_header_bytes));
  header_seen_ = false;
}

void HttpSession::read() {
  if (reading_ || state_ == State::kClosed) return;
  if (state_ == State::kAnswering && input_.size() >= kReadAheadBytes) return;
  reading_ = true;
  socket_.async_read_some(input_.prepare(kReadBytes),
                          [self = shared_from_this()](const error_code& error, size_t byte_count) {
                            self->reading_ = false;
                            if (self->state_ == State::kClosed) return;
                            if (error) return self->close();
                            self->on_read(byte_count);
                          });
}

void HttpSession::on_read(size_t byte_count) {
  input_.commit(byte_count);
  if (state_ == State::kLingering) {
    input_.consume(input_.size());
  } else if (state_ == State::kReading) {
    arm_deadline(shared_.options.read_timeout_ms);
    parse();
  }
  read();
}

void HttpSession::parse() {
  while (state_ == State::kReading && input_.size() > 0) {
    if (!parser_->got_some()) {  // empty lines between requests are allowed
      const char first = *static_cast<const char*>(input_.data().data());
      if (first == '\r' || first == '\n') {
        input_.consume(1);
        continue;
      }
    }
    error_code error;
    const size_t used = parser_->put(input_.data(), error);
    input_.consume(used);
    if (error && error != http::error::need_more) return refuse(error);
    if (parser_->is_header_done() && !header_seen_) on_header();
    if (parser_->is_done()) return on_request();
    if (error || used == 0) return;
  }
}

void HttpSession::on_header() {
  header_seen_ = true;
  if (parser_->get().version() >= 11 && boost::beast::iequals(parser_->get()[http::field::expect], "100-continue")) {
    output_ += "HTTP/1.1 100 Continue\r\n\r\n";
    flush();
  }
}

void HttpSession::on_request() {
  auto message = parser_->release();
  keep_alive_ = message.keep_alive();
  chunked_ = message.version() >= 11;
  is_head_ = message.method() == http::verb::head;
  head_sent_ = false;
  finishing_ = false;
  request_id_.clear();
  HttpRequest request;
  request.method = std::string(message.method_string());
  request.target = std::string(message.target());
  for (const auto& field : message) request.headers.emplace_back(field.name_string(), field.value());
  request.body = std::move(message.body());
  const std::string_view request_id = request.header("X-Request-Id");
  if (request_id.size() <= kMaxRequestIdBytes) request_id_ = request_id;
  state_ = State::kAnswering;
  shared_.open_responses.fetch_add(1);
  disarm_deadline();
  shared_.handler(std::move(request), std::make_shared<SessionWriter>(shared_from_this(), ++serial_));
}

// What is not HTTP, or more than the limits allow, gets its answer here; then the connection ends.
void HttpSession::refuse(const error_code& error) {
  ApiError answer = http_error(400, "The request is not valid HTTP: " + error.message());
  if (error == http::error::body_limit) {
    answer = http_error(413, fmt::format("The request body is larger than {} bytes", shared_.options.max_body_bytes));
  } else if (error == http::error::header_limit) {
    answer =
        http_error(431, fmt::format("The request's head is larger than {} bytes", shared_.options.max_header_bytes));
  }
  state_ = State::kAnswering;
  shared_.open_responses.fetch_add(1);
  disarm_deadline();
  keep_alive_ = false;
  chunked_ = true;
  is_head_ = false;
  head_sent_ = false;
  finishing_ = false;
  request_id_.clear();
  send(++serial_, error_response(answer));
}

std::string HttpSession::head(const HttpResponse& response, const std::string& framing) const {
  std::string text = fmt::format("HTTP/1.1 {} {}\r\nServer: assay\r\nDate: {}\r\nConnection: {}\r\n", response.status,
                                 std::string_view(http::obsolete_reason(http::status(response.status))), http_date(),
                                 keep_alive_ ? "keep-alive" : "close");
  if (shared_.options.on_response) shared_.options.on_response(response.status);
  if (!request_id_.empty()) text += "X-Request-Id: " + request_id_ + "\r\n";
  if (!response.content_type.empty()) text += "Content-Type: " + response.content_type + "\r\n";
  for (const auto& [name, value] : response.headers) text += name + ": " + value + "\r\n";
  return text + framing + "\r\n";
}

void HttpSession::send(uint64_t serial, const HttpResponse& response) {
  if (serial != serial_ || state_ != State::kAnswering || head_sent_) return;
  head_sent_ = true;
  finishing_ = true;
  on_disconnect_ = nullptr;
  const bool has_body = response.status != 204;
  output_ += head(response, has_body ? fmt::format("Content-Length: {}\r\n", response.body.size()) : "");
  if (has_body && !is_head_) output_ += response.body;
  flush();
}

void HttpSession::begin_stream(uint64_t serial, const HttpResponse& response, std::string idle_text,
                               int64_t idle_interval_ms) {
  if (serial != serial_ || state_ != State::kAnswering || head_sent_) return;
  head_sent_ = true;
  if (!chunked_) keep_alive_ = false;  // HTTP/1.0: the end of the connection ends the body
  output_ += head(response, chunked_ ? "Transfer-Encoding: chunked\r\n" : "");
  last_output_us_ = now_us();
  append_chunk(response.body);
  idle_text_ = std::move(idle_text);
  idle_interval_ms_ = idle_interval_ms;
  flush();
  arm_idle();
}

void HttpSession::append_chunk(std::string_view data) {
  if (data.empty()) return;  // an empty chunk would end the body
  last_output_us_ = now_us();
  if (!chunked_) {
    output_ += data;
  } else {
    output_ += fmt::format("{:x}\r\n", data.size());
    output_ += data;
    output_ += "\r\n";
  }
}

void HttpSession::write(uint64_t serial, std::string_view data) {
  if (serial != serial_ || state_ != State::kAnswering || !head_sent_ || finishing_) return;
  append_chunk(data);
  if (output_.size() + in_flight_.size() > shared_.options.max_unsent_bytes) {
    log_warning("a client lags by more than {} bytes: cutting its connection", shared_.options.max_unsent_bytes);
    return close();
  }
  flush();
}

void HttpSession::end(uint64_t serial) {
  if (serial != serial_ || state_ != State::kAnswering || !head_sent_ || finishing_) return;
  finishing_ = true;
  on_disconnect_ = nullptr;
  idle_.cancel();
  if (chunked_) output_ += "0\r\n\r\n";
  flush();
}

void HttpSession::set_on_disconnect(uint64_t serial, std::function<void()> callback) {
  if (serial == serial_ && state_ == State::kAnswering) {
    if (!finishing_) on_disconnect_ = std::move(callback);
  } else if (callback) {
    callback();
  }
}

void HttpSession::abandon(uint64_t serial) {
  if (serial != serial_ || state_ != State::kAnswering || finishing_) return;
  on_disconnect_ = nullptr;
  if (head_sent_) return close();
  send(serial, error_response(http_error(500, "Internal error")));
}

void HttpSession::flush() {
  if (writing_ || state_ == State::kClosed) return;
  if (output_.empty()) {
    if (finishing_) on_answered();
    return;
  }
  writing_ = true;
  in_flight_.clear();
  in_flight_.swap(output_);
  if (state_ == State::kAnswering) arm_deadline(shared_.options.write_timeout_ms);
  asio::async_write(socket_, asio::buffer(in_flight_), [self = shared_from_this()](const error_code& error, size_t) {
    self->writing_ = false;
    if (self->state_ == State::kClosed) return;
    if (error) return self->close();
    self->on_written();
  });
}

void HttpSession::on_written() {
  in_flight_.clear();
  if (state_ == State::kAnswering) disarm_deadline();
  flush();
}

void HttpSession::on_answered() {
  finishing_ = false;
  shared_.open_responses.fetch_sub(1);
  if (!keep_alive_) {
    state_ = State::kLingering;
    error_code ignored;
    socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
    arm_deadline(kLingerMs);
    input_.consume(input_.size());
    return read();
  }
  state_ = State::kReading;
  reset_parser();
  arm_deadline(shared_.options.idle_timeout_ms);
  // Posted, so that a long train of requests sent ahead does not become a deep recursion.
  asio::post(shared_.io, [self = shared_from_this()] {
    if (self->state_ == State::kReading) self->parse();
    self->read();
  });
}

void HttpSession::arm_idle() {
  if (idle_interval_ms_ <= 0 || finishing_ || state_ != State::kAnswering) return;
  idle_.expires_at(std::chrono::steady_clock::time_point(std::chrono::microseconds(last_output_us_)) +
                   std::chrono::milliseconds(idle_interval_ms_));
  idle_.async_wait([self = shared_from_this(), serial = serial_](const error_code& error) {
    if (error || serial != self->serial_ || self->finishing_ || self->state_ != State::kAnswering) return;
    if (now_us() - self->last_output_us_ >= self->idle_interval_ms_ * 1000) self->write(serial, self->idle_text_);
    self->arm_idle();
  });
}

void HttpSession::arm_deadline(int64_t milliseconds) {
  deadline_.expires_after(std::chrono::milliseconds(milliseconds));
  deadline_.async_wait([self = shared_from_this()](const error_code& error) {
    if (error || self->state_ == State::kClosed) return;
    if (self->deadline_.expiry() > std::chrono::steady_clock::now()) return;  // armed again meanwhile
    self->close();
  });
}

void HttpSession::disarm_deadline() { deadline_.expires_at(std::chrono::steady_clock::time_point::max()); }

}  // namespace assay::server

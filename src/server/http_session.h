// One connection. Included by http_server.cc and http_session.cc only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>

#include "server/http_server.h"

namespace assay::server {

class HttpSession;

// What the connections of a server share; outlives them. IO thread only, but for open_responses.
struct HttpShared {
  HttpOptions options;
  HttpHandler handler;
  boost::asio::io_context io{1};
  std::unordered_set<std::shared_ptr<HttpSession>> sessions;
  std::atomic<int> open_responses = 0;
};

// Owner: HttpShared::sessions until close(), and the operations in flight. IO thread only.
//
// The connection reads bytes at all times and feeds them to the parser only between answers; so the read in flight
// while a request is answered is what notices a client that leaves.
class HttpSession : public std::enable_shared_from_this<HttpSession> {
 public:
  HttpSession(HttpShared& shared, boost::asio::ip::tcp::socket socket);

  void start();
  void close();  // drops everything at once; the on_disconnect callback runs

  // A writer's calls. `serial` is the request it answers: calls for an earlier one are ignored.
  void send(uint64_t serial, const HttpResponse& response);
  void begin_stream(uint64_t serial, const HttpResponse& response, std::string idle_text, int64_t idle_interval_ms);
  void write(uint64_t serial, std::string_view data);
  void end(uint64_t serial);
  void set_on_disconnect(uint64_t serial, std::function<void()> callback);
  void abandon(uint64_t serial);  // the writer is gone

  boost::asio::io_context& io() { return shared_.io; }

 private:
  enum class State {
    kReading,    // waiting for, or within, a request
    kAnswering,  // the handler has it
    kLingering,  // answered and half closed: reads what the client still sends, so that it sees the answer
    kClosed,
  };
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;

  void reset_parser();
  void read();
  void on_read(size_t byte_count);
  void parse();
  void on_header();
  void on_request();
  void refuse(const boost::system::error_code& error);
  std::string head(const HttpResponse& response, const std::string& framing) const;
  void append_chunk(std::string_view data);
  void flush();
  void on_written();
  void on_answered();
  void arm_idle();
  void arm_deadline(int64_t milliseconds);
  void disarm_deadline();

  HttpShared& shared_;
  boost::asio::ip::tcp::socket socket_;
  boost::asio::steady_timer deadline_;
  boost::asio::steady_timer idle_;
  State state_ = State::kReading;

  boost::beast::flat_buffer input_;
  std::optional<Parser> parser_;
  bool header_seen_ = false;
  bool reading_ = false;

  uint64_t serial_ = 0;
  bool keep_alive_ = false;
  bool chunked_ = false;  // the client speaks HTTP/1.1
  bool is_head_ = false;  // HEAD: no body
  bool head_sent_ = false;
  std::string request_id_;  // X-Request-Id, to be echoed
  bool finishing_ = false;  // the answer is complete once all output is written
  std::function<void()> on_disconnect_;
  std::string idle_text_;
  int64_t idle_interval_ms_ = 0;
  int64_t last_output_us_ = 0;

  std::string output_;     // not yet given to the socket
  std::string in_flight_;  // being written
  bool writing_ = false;
};

}  // namespace assay::server

#include "server/http_server.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

#include "server/test_client.h"

namespace assay::server {
namespace {

using namespace std::chrono_literals;

template <class Condition>
bool within_10_s(Condition condition) {
  for (int i = 0; i < 5000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(2ms);
  }
  return false;
}

// Echoes method, target and body; what the paths do is at their tests.
class HttpServerTest : public ::testing::Test {
 protected:
  void start(HttpOptions options = {}) {
    options.port = 0;
    auto server = HttpServer::start(options, [this](HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
      handle(std::move(request), std::move(writer));
    });
    ASSERT_TRUE(server.ok()) << server.error().message();
    server_ = std::move(server).value();
  }

  void handle(HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
    HttpResponse response;
    response.content_type = "text/plain";
    if (request.path() == "/drop") return;
    if (request.path() == "/hold") {
      writer->on_disconnect([this] { ++disconnects_; });
      const std::lock_guard lock(mutex_);
      held_ = std::move(writer);
      return;
    }
    if (request.path() == "/stream") {
      response.body = "first\n";
      writer->on_disconnect([this] { ++disconnects_; });
      writer->begin_stream(std::move(response), ": idle\n", 50);
      const std::lock_guard lock(mutex_);
      held_ = std::move(writer);
      return;
    }
    response.body = request.method + " " + request.target + " " + request.body;
    writer->send(std::move(response));
  }

  std::shared_ptr<ResponseWriter> held() {
    EXPECT_TRUE(within_10_s([this] {
      const std::lock_guard lock(mutex_);
      return held_ != nullptr;
    }));
    const std::lock_guard lock(mutex_);
    return std::exchange(held_, nullptr);
  }

  void TearDown() override {
    held_.reset();
    server_.reset();
  }

  std::mutex mutex_;
  std::shared_ptr<ResponseWriter> held_;
  std::atomic<int> disconnects_ = 0;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, KeepsTheConnection) {
  start();
  TestClient client(server_->port());
  for (int i = 0; i < 3; ++i) {
    const TestResponse response = client.call("POST", "/a?b=c", "body", "X-Request-Id: id-7\r\n");
    EXPECT_EQ(response.status, 200);
    EXPECT_EQ(response.body, "POST /a?b=c body");
    EXPECT_EQ(response.headers.at("connection"), "keep-alive");
    EXPECT_EQ(response.headers.at("x-request-id"), "id-7");
  }
  EXPECT_FALSE(client.call("GET", "/a").headers.contains("x-request-id"));
}

TEST_F(HttpServerTest, RequestsSentAheadAreAnsweredInOrder) {
  start();
  TestClient client(server_->port());
  std::string train;
  for (int i = 0; i < 500; ++i) train += TestClient::request("POST", fmt::format("/{}", i), "x");
  ASSERT_TRUE(client.send(train));
  for (int i = 0; i < 500; ++i) ASSERT_EQ(client.read_response().body, fmt::format("POST /{} x", i));
}

TEST_F(HttpServerTest, AWaitingAnswerHoldsBackTheNextRequest) {
  start();
  TestClient client(server_->port());
  ASSERT_TRUE(client.send(TestClient::request("GET", "/hold") + TestClient::request("GET", "/next")));
  held()->send({200, "held", "text/plain", {}});
  EXPECT_EQ(client.read_response().body, "held");
  EXPECT_EQ(client.read_response().body, "GET /next ");
  EXPECT_EQ(disconnects_, 0);
}

TEST_F(HttpServerTest, BytesOneByOne) {
  start();
  TestClient client(server_->port());
  for (const char c : "\r\n" + TestClient::request("POST", "/slow", "body")) {
    ASSERT_TRUE(client.send({&c, 1}));
    std::this_thread::sleep_for(100us);
  }
  EXPECT_EQ(client.read_response().body, "POST /slow body");
}

TEST_F(HttpServerTest, ChunkedBodyAndContinue) {
  start();
  TestClient client(server_->port());
  client.send("POST /c HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.read_head().status, 100);
  client.send("3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
  EXPECT_EQ(client.read_response().body, "POST /c abcde");
}

TEST_F(HttpServerTest, HeadHasNoBody) {
  start();
  TestClient client(server_->port());
  const TestResponse response = client.call("HEAD", "/h");
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.headers.at("content-length"), "8");
  EXPECT_EQ(client.call("GET", "/g").body, "GET /g ");
}

TEST_F(HttpServerTest, OldProtocolAndCloseEndTheConnection) {
  start();
  TestClient old(server_->port());
  old.send("GET /old HTTP/1.0\r\n\r\n");
  EXPECT_EQ(old.read_response().body, "GET /old ");
  EXPECT_TRUE(old.ended());
  TestClient closing(server_->port());
  EXPECT_EQ(closing.call("GET", "/x", "", "Connection: close\r\n").headers.at("connection"), "close");
  EXPECT_TRUE(closing.ended());
}

TEST_F(HttpServerTest, WhatIsNotHttpGets400) {
  start();
  for (const char* bytes : {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n",
                            "GET / HTTP/1.1\r\nbad header\r\n\r\n", "POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n"}) {
    TestClient client(server_->port());
    client.send(std::string(bytes) + "\r\n\r\n");
    const TestResponse response = client.read_response();
    EXPECT_EQ(response.status, 400) << bytes;
    EXPECT_NE(response.body.find("\"invalid_request_error\""), std::string::npos) << response.body;
    EXPECT_TRUE(client.ended());
  }
}

TEST_F(HttpServerTest, Limits) {
  HttpOptions options;
  options.max_body_bytes = 1000;
  options.max_header_bytes = 2000;
  start(options);
  TestClient fits(server_->port());
  EXPECT_EQ(fits.call("POST", "/", std::string(1000, 'x')).status, 200);

  TestClient announced(server_->port());  // refused by its Content-Length, and while it is still sending
  announced.send("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 10000000\r\n\r\n");
  announced.send(std::string(3'000'000, 'x'));
  const TestResponse response = announced.read_response();
  EXPECT_EQ(response.status, 413);
  EXPECT_NE(response.body.find("\"request_too_large\""), std::string::npos) << response.body;

  TestClient chunked(server_->port());
  chunked.send("POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n" + std::string(2000, 'x') +
               "\r\n");
  EXPECT_EQ(chunked.read_response().status, 413);

  TestClient long_head(server_->port());
  long_head.send("GET / HTTP/1.1\r\nA: " + std::string(5000, 'x') + "\r\n\r\n");
  EXPECT_EQ(long_head.read_response().status, 431);
}

TEST_F(HttpServerTest, DroppedWriterAnswers500) {
  start();
  TestClient client(server_->port());
  EXPECT_EQ(client.call("GET", "/drop").status, 500);
  EXPECT_EQ(client.call("GET", "/alive").status, 200);
}

TEST_F(HttpServerTest, StreamInPiecesWithIdleText) {
  start();
  TestClient client(server_->port());
  client.send(TestClient::request("GET", "/stream"));
  EXPECT_EQ(client.read_head().headers.at("transfer-encoding"), "chunked");
  EXPECT_EQ(client.read_chunk(), "first\n");
  const auto writer = held();
  writer->write("second\n");
  std::string chunk = client.read_chunk();
  while (chunk == ": idle\n") chunk = client.read_chunk();  // on a slow machine
  EXPECT_EQ(chunk, "second\n");
  EXPECT_EQ(client.read_chunk(), ": idle\n");
  EXPECT_EQ(client.read_chunk(), ": idle\n");
  writer->end();
  while (!(chunk = client.read_chunk()).empty()) EXPECT_EQ(chunk, ": idle\n");
  EXPECT_EQ(client.call("GET", "/after").body, "GET /after ");
  EXPECT_TRUE(within_10_s([this] { return server_->open_responses() == 0; }));
  EXPECT_EQ(disconnects_, 0);
}

TEST_F(HttpServerTest, ManyWritesInARowArriveWholeAndInOrder) {
  start();
  TestClient client(server_->port(), 4096);  // the kernel cannot take it all
  client.send(TestClient::request("GET", "/stream"));
  const auto writer = held();
  std::string expected = "first\n";
  for (int i = 0; i < 2000; ++i) {
    const std::string piece = fmt::format("{}:", i) + std::string(5 * i, static_cast<char>('a' + i % 26));
    writer->write(piece);
    expected += piece;
  }
  writer->end();
  std::string body = client.read_response().body;
  for (size_t at; (at = body.find(": idle\n")) != std::string::npos;) body.erase(at, 7);
  EXPECT_TRUE(body == expected) << body.size() << " bytes of " << expected.size();
}

TEST_F(HttpServerTest, LeavingIsNoticed) {
  start();
  for (const char* target : {"/stream", "/hold"}) {
    const int before = disconnects_;
    TestClient client(server_->port());
    client.send(TestClient::request("GET", target));
    const auto writer = held();
    EXPECT_EQ(server_->open_responses(), 1);
    EXPECT_EQ(disconnects_, before);
    client.close();
    EXPECT_TRUE(within_10_s([&] { return disconnects_ == before + 1; })) << target;
    EXPECT_EQ(server_->open_responses(), 0);
    writer->write("too late");
    writer->end();
    std::atomic<bool> told_at_once = false;  // a callback set after the client has left
    writer->on_disconnect([&] { told_at_once = true; });
    EXPECT_TRUE(within_10_s([&] { return told_at_once.load(); }));
  }
}

TEST_F(HttpServerTest, ClientThatDoesNotReadIsCut) {
  HttpOptions options;
  options.max_unsent_bytes = 1 << 20;
  start(options);
  TestClient client(server_->port(), 4096);
  client.send(TestClient::request("GET", "/stream"));
  const auto writer = held();
  for (int i = 0; i < 400 && disconnects_ == 0; ++i) {
    writer->write(std::string(100'000, 'x'));
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_TRUE(within_10_s([&] { return disconnects_ == 1; }));
}

TEST_F(HttpServerTest, Timeouts) {
  HttpOptions options;
  options.idle_timeout_ms = 50;
  options.read_timeout_ms = 50;
  start(options);
  TestClient idle(server_->port()), half(server_->port());
  half.send("GET / HTTP/1.1\r\nHo");
  EXPECT_TRUE(idle.ended());
  EXPECT_TRUE(half.ended());
  TestClient waiting(server_->port());  // no timeout while the handler works
  waiting.send(TestClient::request("GET", "/hold"));
  const auto writer = held();
  std::this_thread::sleep_for(200ms);
  writer->send({200, "held", "text/plain", {}});
  EXPECT_EQ(waiting.read_response().body, "held");
}

TEST_F(HttpServerTest, StopCutsAndTellsHandlers) {
  start();
  TestClient client(server_->port());
  client.send(TestClient::request("GET", "/stream"));
  const auto writer = held();
  server_->stop();
  EXPECT_EQ(disconnects_, 1);
  writer->write("nobody hears");
}

TEST_F(HttpServerTest, PortInUseAndBadHostAreErrors) {
  start();
  HttpOptions options;
  options.port = server_->port();
  const auto second = HttpServer::start(options, [](HttpRequest, std::shared_ptr<ResponseWriter>) {});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().kind, ErrorKind::kIo);
  EXPECT_NE(second.error().message().find("in use"), std::string::npos) << second.error().message();
  options.host = "no such host";
  const auto third = HttpServer::start(options, [](HttpRequest, std::shared_ptr<ResponseWriter>) {});
  ASSERT_FALSE(third.ok());
  EXPECT_EQ(third.error().kind, ErrorKind::kInvalidArgument);
}

TEST_F(HttpServerTest, ManyConnectionsAtOnce) {
  start();
  std::atomic<int> right = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 32; ++t) {
    threads.emplace_back([&, t] {
      TestClient client(server_->port());
      for (int i = 0; i < 50; ++i) {
        if (client.call("POST", fmt::format("/{}/{}", t, i), "x").body == fmt::format("POST /{}/{} x", t, i)) ++right;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(right, 32 * 50);
}

}  // namespace
}  // namespace assay::server

// A blocking HTTP client for tests: it sends any bytes and reads whole answers, or a stream piece by piece.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/core.h>

namespace assay::server {

struct TestResponse {
  int status = 0;                              // 0: the connection ended first
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
};

class TestClient {
 public:
  explicit TestClient(uint16_t port, int receive_buffer_bytes = 0) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_buffer_bytes > 0) {
      ::setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof(receive_buffer_bytes));
    }
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  }
  ~TestClient() { close(); }
  TestClient(const TestClient&) = delete;
  TestClient& operator=(const TestClient&) = delete;

  bool connected() const { return connected_; }
  void close() {
    if (socket_ >= 0) ::close(std::exchange(socket_, -1));
  }

  // False once the server has reset the connection.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }

  static std::string request(std::string_view method, std::string_view target, std::string_view body = "",
                             std::string_view extra_headers = "") {
    std::string text = fmt::format("{} {} HTTP/1.1\r\nHost: test\r\n{}", method, target, extra_headers);
    if (!body.empty()) text += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", body.size());
    return text + "\r\n" + std::string(body);
  }

  TestResponse call(std::string_view method, std::string_view target, std::string_view body = "",
                    std::string_view extra_headers = "") {
    send(request(method, target, body, extra_headers));
    return read_response(method == "HEAD");
  }

  TestResponse read_response(bool is_head = false) {
    TestResponse response = read_head();
    if (response.status == 0 || is_head || response.status == 204) return response;
    if (response.headers.contains("transfer-encoding")) {
      std::string chunk;
      while (!(chunk = read_chunk()).empty()) response.body += chunk;
    } else if (response.headers.contains("content-length")) {
      response.body = read_bytes(std::strtoul(response.headers["content-length"].c_str(), nullptr, 10));
    } else {
      while (fill()) {
      }
      response.body = std::exchange(input_, "");
    }
    return response;
  }

  TestResponse read_head() {
    TestResponse response;
    const std::string status_line = read_line();
    if (status_line.size() < 12) return response;
    response.status = std::atoi(status_line.c_str() + 9);
    for (std::string line = read_line(); !line.empty(); line = read_line()) {
      const size_t colon = line.find(':');
      if (colon == std::string::npos) break;
      std::string name = line.substr(0, colon);
      for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      response.headers[name] = line.substr(line.find_first_not_of(' ', colon + 1));
    }
    return response;
  }

  // The next chunk of a chunked body; empty at its end, or when the connection ended.
  std::string read_chunk() {
    const std::string size = read_line();
    if (size.empty()) return "";
    std::string data = read_bytes(std::strtoul(size.c_str(), nullptr, 16));
    read_line();
    return data;
  }

  // True if the server ends the connection, with nothing more sent, within 10 s.
  bool ended() { return input_.empty() && !fill() && !timed_out_; }

 private:
  bool fill() {
    pollfd poll_socket{socket_, POLLIN, 0};
    timed_out_ = ::poll(&poll_socket, 1, 10'000) == 0;
    if (timed_out_) return false;
    char bytes[65536];
    const ssize_t count = ::recv(socket_, bytes, sizeof(bytes), 0);
    if (count <= 0) return false;
    input_.append(bytes, static_cast<size_t>(count));
    return true;
  }
  std::string read_line() {
    size_t end;
    while ((end = input_.find("\r\n")) == std::string::npos) {
      if (!fill()) return "";
    }
    std::string line = input_.substr(0, end);
    input_.erase(0, end + 2);
    return line;
  }
  std::string read_bytes(size_t count) {
    while (input_.size() < count && fill()) {
    }
    std::string bytes = input_.substr(0, count);
    input_.erase(0, bytes.size());
    return bytes;
  }

  int socket_;
  bool connected_ = false;
  bool timed_out_ = false;
  std::string input_;
};

}  // namespace assay::server

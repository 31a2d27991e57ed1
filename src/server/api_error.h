// Errors as the API's clients see them.
//
// Body: {"error":{"message","type","param","code"}}, param and code null when empty.
#pragma once

#include <string>

#include "server/http_server.h"

namespace assay::server {

struct ApiError {
  int status = 400;
  std::string type = "invalid_request_error";
  std::string message;
  std::string param;  // the request's field at fault
  std::string code;
  bool retryable = false;  // adds "retryable": true
  bool final = false;      // adds the header x-should-retry: false, which OpenAI's clients obey
  int retry_after_s = 0;   // > 0: adds the Retry-After header
  std::string allow;       // not empty: the Allow header
  std::string progress;    // not empty: adds "progress", how far loading has come
};

// 400 invalid_request_error with code invalid_value, naming the field.
ApiError invalid_field(std::string param, std::string message);

// 503 unavailable_error; its code is the number 503, as llama.cpp's clients expect.
ApiError unavailable(std::string message);

// For what the HTTP layer refuses: 400, 408, 413, 431, 500.
ApiError http_error(int status, std::string message);

std::string error_body(const ApiError& error);
HttpResponse error_response(const ApiError& error);

}  // namespace assay::server

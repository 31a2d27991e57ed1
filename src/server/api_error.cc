#include "server/api_error.h"

#include <nlohmann/json.hpp>

namespace assay::server {

using Json = nlohmann::ordered_json;

ApiError invalid_field(std::string param, std::string message) {
  ApiError error;
  error.message = std::move(message);
  error.param = std::move(param);
  error.code = "invalid_value";
  return error;
}

ApiError unavailable(std::string message) {
  ApiError error;
  error.status = 503;
  error.type = "unavailable_error";
  error.message = std::move(message);
  error.retry_after_s = 1;
  return error;
}

ApiError http_error(int status, std::string message) {
  ApiError error;
  error.status = status;
  error.message = std::move(message);
  if (status == 413) {
    error.type = "request_too_large";
  } else if (status >= 500) {
    error.type = "server_error";
  }
  return error;
}

std::string error_body(const ApiError& error) {
  Json inner;
  inner["message"] = error.message;
  inner["type"] = error.type;
  inner["param"] = error.param.empty() ? Json(nullptr) : Json(error.param);
  if (error.status == 503) {
    inner["code"] = 503;
  } else {
    inner["code"] = error.code.empty() ? Json(nullptr) : Json(error.code);
  }
  if (error.retryable) inner["retryable"] = true;
  if (!error.progress.empty()) inner["progress"] = error.progress;
  Json body;
  body["error"] = std::move(inner);
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

HttpResponse error_response(const ApiError& error) {
  HttpResponse response;
  response.status = error.status;
  response.body = error_body(error);
  if (error.retry_after_s > 0) response.headers.emplace_back("Retry-After", std::to_string(error.retry_after_s));
  if (error.final) response.headers.emplace_back("x-should-retry", "false");
  if (!error.allow.empty()) response.headers.emplace_back("Allow", error.allow);
  return response;
}

}  // namespace assay::server

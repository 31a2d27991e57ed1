// What `assay serve` decides about the server.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/http_server.h"

namespace assay::server {

// What generation_config.json says; holds where a request leaves a parameter out.
struct SamplingDefaults {
  bool do_sample = true;  // false: greedy, unless the request sets a temperature
  float temperature = 1;
  int32_t top_k = 0;
  float top_p = 1;
  float min_p = 0;
};

struct ServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8000;              // 0: any free one
  std::string model_id;              // the name clients ask for
  std::vector<std::string> aliases;  // further names of the same model
  std::string model_root;            // where it was loaded from; shown by /v1/models
  std::string version = "0.1.0";
  std::string system_fingerprint = "assay-0.1.0";
  SamplingDefaults sampling;
  int text_threads = 2;            // templates, encoding, large bodies
  int64_t keep_alive_ms = 15'000;  // a comment is sent on a stream that was silent for so long
  int64_t request_timeout_ms = 0;  // a request is ended so long after its arrival; 0: never
  HttpOptions http;                // limits and timeouts; its host and port are not used
};

}  // namespace assay::server

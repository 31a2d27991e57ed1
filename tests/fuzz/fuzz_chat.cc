// The body of a chat request of any bytes; one that is accepted is rendered by the shipped template.
#include <nlohmann/json.hpp>

#include "fuzz/fuzz_util.h"
#include "server/chat_request.h"
#include "text/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto shipped = assay::text::ChatTemplate::load("models/pocket").value();
  assay::server::ChatRequest request;
  if (assay::server::parse_chat_request(assay::fuzz::text_of(data, size), request)) return 0;
  if (!request.context || !request.context->is_object()) std::abort();
  (void)assay::fuzz::accepted(shipped->render(*request.context));
  return 0;
}

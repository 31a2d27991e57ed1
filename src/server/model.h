// What the server needs of a loaded model.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/loop.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace assay::server {

// Nothing is owned. Tokenizer and template must live until the server is destroyed, the loop until it has stopped.
struct Model {
  const text::Tokenizer* tokenizer = nullptr;
  const text::ChatTemplate* chat_template = nullptr;
  scheduler::Loop* loop = nullptr;
  std::vector<int32_t> stop_tokens;
  int32_t context_tokens = 0;  // a prompt must be shorter
};

}  // namespace assay::server

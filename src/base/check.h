// CHECK(condition, format, ...): our own bugs. Always on; prints where, what and the op trace, then aborts.
// User input never trips a CHECK: that is a Result (result.h).
#pragma once

#include <fmt/core.h>

#include <string>

namespace assay {

[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& message);

// The ops being run by this thread, innermost last; printed when a CHECK fails.
class OpTrace {
 public:
  OpTrace(const char* op, int layer);
  ~OpTrace();
  OpTrace(const OpTrace&) = delete;
  OpTrace& operator=(const OpTrace&) = delete;
};

}  // namespace assay

#define CHECK(condition, ...)                                                               \
  do {                                                                                      \
    if (!(condition)) [[unlikely]]                                                          \
      ::assay::check_failed(__FILE__, __LINE__, #condition, ::fmt::format("" __VA_ARGS__)); \
  } while (0)

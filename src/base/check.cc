#include "base/check.h"

#include <array>
#include <cstdio>
#include <cstdlib>

namespace assay {
namespace {

struct TraceEntry {
  const char* op;
  int layer;
};
constexpr int kMaxTrace = 16;
thread_local std::array<TraceEntry, kMaxTrace> trace_entries;
thread_local int trace_depth = 0;

}  // namespace

OpTrace::OpTrace(const char* op, int layer) {
  if (trace_depth < kMaxTrace) trace_entries[trace_depth] = {op, layer};
  ++trace_depth;
}

OpTrace::~OpTrace() { --trace_depth; }

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  std::fprintf(stderr, "assay: CHECK(%s) failed at %s:%d: %s\n", condition, file, line, message.c_str());
  for (int i = 0; i < trace_depth && i < kMaxTrace; ++i) {
    std::fprintf(stderr, "  in %s, layer %d\n", trace_entries[i].op, trace_entries[i].layer);
  }
  std::abort();
}

}  // namespace assay

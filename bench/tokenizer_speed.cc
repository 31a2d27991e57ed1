// tokenizer_speed MODEL_DIR FILE...: bytes of text encoded per second on one thread, for each file: the first time,
// when every word is new to the thread's cache of words, and the best of nine more. Nothing here is a test.
#include <fmt/core.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "text/tokenizer.h"

namespace assay::text {
namespace {

constexpr int kRepeats = 9;

double megabytes_per_s(const Tokenizer& tokenizer, const std::string& text, size_t& tokens) {
  const int64_t start = now_us();
  tokens = tokenizer.encode(text).size();
  return static_cast<double>(text.size()) / static_cast<double>(std::max<int64_t>(now_us() - start, 1));
}

// On a thread of its own, whose cache is empty.
void measure(const Tokenizer& tokenizer, const char* path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  size_t tokens = 0;
  const double first = megabytes_per_s(tokenizer, text, tokens);
  double best = 0;
  for (int i = 0; i < kRepeats; ++i) best = std::max(best, megabytes_per_s(tokenizer, text, tokens));
  fmt::print("{}: {} bytes, {} tokens; first {:.1f} MB/s, again {:.1f} MB/s\n", path, text.size(), tokens, first, best);
}

}  // namespace
}  // namespace assay::text

int main(int argc, char** argv) {
  using assay::text::Tokenizer;
  if (argc < 3) {
    fmt::print(stderr, "usage: tokenizer_speed MODEL_DIR FILE...\n");
    return 2;
  }
  const auto tokenizer = Tokenizer::load(argv[1]);
  if (!tokenizer.ok()) {
    fmt::print(stderr, "{}\n", tokenizer.error().message());
    return 3;
  }
  for (int i = 2; i < argc; ++i) std::thread(assay::text::measure, std::cref(**tokenizer), argv[i]).join();
  return 0;
}

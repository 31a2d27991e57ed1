#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/pre_tokenizer.h"

#include <pcre2.h>

#include <algorithm>
#include <limits>

#include "base/log.h"
#include "text/unicode_additions.h"

namespace assay::text {
namespace {

constexpr std::string_view kWhiteSpace =
    "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";

constexpr size_t kJitStackStart = 64 * 1024;
constexpr size_t kJitStackMax = 64 * 1024 * 1024;

// A piece that the matcher gave up on is cut into parts of at most this many bytes.
constexpr size_t kSafePiece = 4096;

// The matcher's scratch memory, one for each thread and shared by all patterns: only one match runs at a time.
struct Scratch {
  Scratch()
      : data(pcre2_match_data_create(1, nullptr)),
        context(pcre2_match_context_create(nullptr)),
        stack(pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr)) {
    pcre2_set_match_limit(context, std::numeric_limits<uint32_t>::max());
    pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~Scratch() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
  pcre2_match_data* data;
  pcre2_match_context* context;
  pcre2_jit_stack* stack;
};

// End of a part from `from` on that is safe to cut off: at most kSafePiece bytes, at a character's boundary.
size_t safe_end(std::string_view text, size_t from) {
  size_t end = std::min(text.size(), from + kSafePiece);
  while (end < text.size() && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80) ++end;
  return end;
}

}  // namespace

struct PreTokenizer::Code {
  pcre2_code* code = nullptr;
  bool jit = false;
  ~Code() { pcre2_code_free(code); }
};

PreTokenizer::PreTokenizer(std::unique_ptr<Code> code) : code_(std::move(code)) {}
PreTokenizer::~PreTokenizer() = default;

std::optional<std::string> to_pcre2_pattern(std::string_view pattern) {
  std::string out;
  bool in_class = false;
  const auto add_set = [&](std::string_view set) {
    if (in_class) {
      out += set;
    } else {
      ((out += '[') += set) += ']';
    }
  };
  for (size_t i = 0; i < pattern.size();) {
    if (pattern[i] != '\\' || i + 1 == pattern.size()) {
      if (pattern[i] == '[') in_class = true;
      if (pattern[i] == ']') in_class = false;
      out += pattern[i++];
      continue;
    }
    const std::string_view escape = pattern.substr(i, 2), property = pattern.substr(i, 5);
    if (in_class && (escape == "\\S" || escape == "\\P" || pattern.substr(i, 4) == "\\p{^")) return std::nullopt;
    if (escape == "\\s") {
      add_set(kWhiteSpace);
    } else if (escape == "\\S") {
      ((out += "[^") += kWhiteSpace) += ']';
    } else if (property == "\\p{L}" || property == "\\p{M}" || property == "\\p{N}") {
      const std::string_view added = property[3] == 'L' ? kNewLetters : property[3] == 'M' ? kNewMarks : kNewNumbers;
      // The property holds the ASCII ranges already; spelt out, the matcher looks them up in a bitmap.
      const std::string_view ascii = property[3] == 'L' ? "a-zA-Z" : property[3] == 'N' ? "0-9" : "";
      add_set((std::string(ascii) += property) += added);
      i += property.size();
      continue;
    } else {
      out += escape;
    }
    i += 2;
  }
  return out;
}

Result<std::unique_ptr<PreTokenizer>> PreTokenizer::make(const std::string& pattern) {
  const auto spelt = to_pcre2_pattern(pattern);
  if (!spelt) {
    return Error{ErrorKind::kCheckpoint, "a negated set within brackets", "pre_tokenizer pattern", pattern, "", ""};
  }
  int error = 0;
  PCRE2_SIZE error_at = 0;
  auto code = std::make_unique<Code>();
  code->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(spelt->data()), spelt->size(),
                             PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &error_at, nullptr);
  if (code->code == nullptr) {
    PCRE2_UCHAR message[256] = {};
    pcre2_get_error_message(error, message, sizeof(message));
    return Error{ErrorKind::kCheckpoint,
                 "pattern does not compile",
                 "pre_tokenizer pattern",
                 pattern,
                 fmt::format("{} at {}", reinterpret_cast<const char*>(message), error_at),
                 ""};
  }
  code->jit = pcre2_jit_compile(code->code, PCRE2_JIT_COMPLETE) == 0;
  return std::unique_ptr<PreTokenizer>(new PreTokenizer(std::move(code)));
}

void PreTokenizer::split(std::string_view text, std::vector<std::string_view>& pieces) const {
  thread_local Scratch scratch;
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  size_t at = 0;      // everything before is in pieces
  size_t search = 0;  // where the next match may begin
  while (search < text.size()) {
    const int found = code_->jit ? pcre2_jit_match(code_->code, subject, text.size(), search, PCRE2_NO_UTF_CHECK,
                                                   scratch.data, scratch.context)
                                 : pcre2_match(code_->code, subject, text.size(), search, PCRE2_NO_UTF_CHECK,
                                               scratch.data, scratch.context);
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0) {
      const size_t end = safe_end(text, at);
      log_warning("pre-tokenizer: match failed with PCRE2 error {} at byte {}; cutting after {} bytes", found, at,
                  end - at);
      pieces.push_back(text.substr(at, end - at));
      at = search = end;
      continue;
    }
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(scratch.data);
    if (range[1] == range[0]) {  // an empty match is no piece
      search = range[1] + 1;
      while (search < text.size() && (static_cast<uint8_t>(text[search]) & 0xC0) == 0x80) ++search;
      continue;
    }
    if (range[0] > at) pieces.push_back(text.substr(at, range[0] - at));
    pieces.push_back(text.substr(range[0], range[1] - range[0]));
    at = search = range[1];
  }
  if (at < text.size()) pieces.push_back(text.substr(at));
}

}  // namespace assay::text

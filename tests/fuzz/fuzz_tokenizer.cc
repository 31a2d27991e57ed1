// A tokenizer.json of any bytes; one that loads must encode any text to its own ids and back to the bytes.
#include "fuzz/fuzz_util.h"
#include "text/tokenizer.h"

namespace {

void use(const assay::text::Tokenizer& tokenizer, std::string_view text) {
  for (const int32_t id : tokenizer.encode(text)) {
    if (id < 0 || id >= tokenizer.vocabulary_size()) std::abort();
    (void)tokenizer.token_bytes(id);
    (void)tokenizer.is_special(id);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const assay::fuzz::Directory directory;
  const std::string_view text = assay::fuzz::text_of(data, size);
  directory.write("tokenizer.json", text);
  const auto tokenizer = assay::text::Tokenizer::load(directory.path());
  if (!assay::fuzz::accepted(tokenizer)) return 0;
  use(**tokenizer, "Hello, w\u00f6rld! 123 \u4f60\u597d\n\n  tail <|im_end|>");
  use(**tokenizer, text.substr(0, 4096));
  return 0;
}

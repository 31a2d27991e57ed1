// Dummy weights: seeded random numbers of the right shapes, formats and magnitudes for any config, without files.
//
// Magnitudes keep activations near 1 through any number of layers: a matrix [N, K] has standard deviation 1 / sqrt(K),
// zero-centred norms are near 0, the delta net's gated norm near 1, its decay about 0.95 a token. Logits have a
// standard deviation of about 3. Formats: see DummyFormat.
//
// The same seed, config and format give the same bytes. Large matrices repeat a block of random values from a start of
// their own: blocks have a prime number of values, so neighbouring rows differ, and memory is filled at the speed of
// memcpy.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoint/binder.h"
#include "numeric/bf16.h"

namespace assay::checkpoint {

enum class DummyFormat : uint8_t {
  kBf16,      // everything
  kModelOpt,  // routed experts NVFP4, the rest BF16
  kNvfp4,     // all linear layers but router and gates NVFP4, the head too unless it is the embedding
};

enum class DummyRouter : uint8_t {
  kUniform,
  kSkewed,  // router rows shrink from 4 times to a quarter of the usual: the first experts get most tokens
};

struct DummyOptions {
  DummyFormat format = DummyFormat::kModelOpt;
  DummyRouter router = DummyRouter::kUniform;
  uint64_t seed = 1;
  bool tied_embeddings = false;  // the embedding is the head, too
  bool allocate = true;          // false: matrices have sizes and a format, but no bytes
};

// Owns the bytes: chunks of memory in huge pages where the system has them, because touching small ones takes longer
// than filling them. Must outlive the matrices of its binder; may move.
class DummyWeights {
 public:
  // Aligned to 64 bytes. kResource if memory runs out.
  Result<MutableBytes> take(size_t bytes);
  uint64_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* chunk) const { std::free(chunk); }
  };
  std::vector<std::unique_ptr<std::byte[], Free>> chunks_;
  MutableBytes rest_;  // of the last chunk
  uint64_t bytes_ = 0;
};

class DummyBinder : public Binder {
 public:
  DummyBinder(DummyWeights& weights, const DummyOptions& options);
  ~DummyBinder() override;

  std::string where() const override { return "dummy weights"; }
  std::string text_prefix() const override { return "model."; }
  bool has(const std::string&) const override { return false; }  // of all spellings, models use the first

  // kInvalidArgument if the format cannot hold so many inputs, kResource if memory runs out.
  Result<numeric::EncodedMatrix> matrix(const std::string& base, int64_t rows, int64_t cols) override;
  Result<numeric::EncodedMatrix> dense(const std::string& name, const Shape& shape, int64_t rows) override;
  // No dummy has fused experts.
  Result<numeric::EncodedMatrix> expert_slice(const std::string& name, const ExpertSlice& slice) override;
  void skip(const std::string&, const std::string&) override {}
  Result<void> keep(const std::string&, const std::string&) override { return {}; }
  Result<void> finish() override { return {}; }

 private:
  bool quantised(std::string_view base) const;
  Result<void> fill_router(numeric::EncodedMatrix& matrix);
  Result<void> fill_plain(numeric::EncodedMatrix& matrix, float deviation);
  Result<void> fill_nvfp4(numeric::EncodedMatrix& matrix, float deviation);
  uint64_t key_of(std::string_view name) const;

  DummyWeights& weights_;
  const DummyOptions options_;
  std::map<float, std::vector<numeric::Bf16>> normal_blocks_;  // by standard deviation
  std::vector<uint8_t> code_block_;
  std::vector<uint8_t> scale_block_;
};

}  // namespace assay::checkpoint

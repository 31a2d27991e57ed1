// The proof as the engine runs it: what load() is asked for, and the pieces that know both models and evidence.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "engine/engine.h"
#include "ops/select.h"
#include "proof/certify.h"
#include "proof/model_probe.h"

namespace assay::engine {

class LocalEngine;

struct ProofOptions {
  bool on = false;                // false: the first rows that can run are used, unproven
  proof::CertifyOptions certify;  // its forced rows are LoadOptions::forced_rows
  std::string receipt_directory;  // empty: no receipt is kept
  bool trust_checkpoint = false;  // changed tensors are accepted, and their hashes kept from now on
  std::vector<int32_t> text;      // for the evidence about the whole model; empty: made-up ids
};

// Hashes of all tensors of a checkpoint.
std::vector<proof::ManifestTensor> manifest_of(const checkpoint::Checkpoint& checkpoint);

// Errors: kCheckpoint naming the changed tensors, unless trusted. Fills in notes.
Result<void> check_tensors(const checkpoint::Checkpoint& checkpoint, const ProofOptions& options,
                           const std::vector<proof::ManifestTensor>& tensors, proof::Report& report);

// What was chosen, whether all of it is proven, and the fingerprint.
void describe_choice(const ops::Selector& selector, uint64_t weights_hash, proof::Report& report);

// Runs texts through an engine that nobody else uses, and leaves its pages and slots poisoned as they were.
class EngineProbe : public proof::ModelProbe {
 public:
  explicit EngineProbe(LocalEngine& engine) : engine_(engine) {}
  // Whether the engine can give the logits of every token of a piece.
  bool possible() const;
  int32_t vocab() const override;
  int32_t most_tokens() const override;
  std::vector<float> logits(std::span<const int32_t> text, proof::Arrangement arrangement) override;
  // What each layer left of one token in the last logits(), the last layer first, of root mean square 1.
  const std::vector<std::vector<double>>& activations() const { return activations_; }

 private:
  struct Piece {
    int32_t first = 0, count = 0, read_slot = -1, write_slot = 0;
  };
  Step make_step(std::span<const int32_t> text, const Piece& piece, bool company);
  void poison();

  LocalEngine& engine_;
  uint64_t step_ = 0;
  int32_t used_pages_ = 0;
  std::vector<std::vector<double>> activations_;
};

}  // namespace assay::engine

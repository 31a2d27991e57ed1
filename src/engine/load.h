// Loading: from a checkpoint directory to an engine that can run steps.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"
#include "checkpoint/config.h"
#include "checkpoint/dummy.h"
#include "engine/engine.h"
#include "engine/ledger.h"
#include "engine/prove.h"
#include "ops/impl.h"

namespace assay::engine {

enum class LoadFormat : uint8_t {
  kSafetensors,
  kDummy,  // seeded random weights: only config.json is read
};

struct LoadOptions {
  std::string model_directory;  // or a config.json of any name, for dummy weights
  LoadFormat load_format = LoadFormat::kSafetensors;
  checkpoint::DummyOptions dummy;  // kDummy only; tied_embeddings comes from the config
  int32_t dummy_layers = 0;        // kDummy only: the first so many layers; 0: all
  std::string device = "cpu";      // as backend::make_device() names it
  int threads = 0;                 // CPU threads; 0: as many as the process may use
  DType compute = DType::kBf16;    // dtype of activations and KV: kBf16, or kF32 (the oracle mode)
  int32_t context_tokens = 0;      // most positions of a sequence; 0: what the config says, or fewer to fit
  int32_t max_sequences = 64;      // sequences that hold pages and state at once; fewer to fit
  int32_t max_step_tokens = 512;
  int64_t kv_cache_bytes = int64_t{512} << 20;  // at most; fewer if max_sequences full contexts need fewer
  double memory_utilization = 0.9;              // the part of the device's memory that may be used
  int32_t real_vocab = 0;                       // token ids from here on are padding rows, never sampled; 0: none are
  std::vector<std::pair<std::string, std::string>> forced_rows;  // target and row: ops/forced_rows.h
  ProofOptions proof;
  std::function<void(const std::string&)> progress;  // one line per stage of the load
};

// What was loaded, for people.
struct ModelSummary {
  std::string architecture;
  int64_t parameters = 0;  // values of all tensors in use, 4-bit ones counted once each
  int64_t checkpoint_bytes = 0;
  int64_t packed_bytes = 0;  // weights in the layouts of the chosen rows
  int64_t kv_bytes = 0;
  int64_t state_bytes = 0;
  int64_t workspace_bytes = 0;
  Ledger ledger;  // all that is allocated on the device
  std::string device;
  int threads = 0;
};

// An engine in this process.
class LocalEngine : public Engine {
 public:
  virtual const checkpoint::TextConfig& config() const = 0;
  virtual const ModelSummary& summary() const = 0;
  // Which row runs each op, and why not the others.
  virtual std::string explain() const = 0;
  // What is proven of the rows in use; empty when load() was not asked to prove.
  virtual const proof::Report& verification() const = 0;
  virtual void set_verification(proof::Report report) = 0;
  // Sees intermediate values of every following step; null: nobody. The caller keeps it alive.
  virtual void set_taps(ops::Taps* taps) = 0;
  // Prepares every shape of decode step ahead, where a device captures them, so that none is prepared while serving.
  virtual void warm_up() = 0;
};

// Errors: kCheckpoint (a file is damaged or unknown; names file, tensor or field), kUnsupported (no row for an op),
// kInvalidArgument (an option), kResource (memory), kIo.
// With proof.on also kNumerical: a forced row, or the whole model, failed its proof.
Result<std::unique_ptr<LocalEngine>> load(const LoadOptions& options);

// The evidence without an engine that serves: with filters (certify.only_op, only_row) about those rows alone. Failed
// rows are in the report, not an error.
Result<proof::Report> prove(const LoadOptions& options);

// Everything the model asks of ops, with the device and weights to run them: for tests of the proof itself.
using VisitInstances = std::function<void(const ops::Instances&, device::Device&, ops::WeightProvider&)>;
Result<void> visit_instances(const LoadOptions& options, const VisitInstances& visit);

// The child's side of first contact (proof/contact.h): loads as far as needed, runs the rows it is asked for, answers.
Result<void> answer_contact(const LoadOptions& options);

}  // namespace assay::engine

// The engine of this process: one device, one model, steps run in order of submission.
#pragma once

#include <memory>
#include <vector>

#include "backend/host_link.h"
#include "checkpoint/checkpoint.h"
#include "engine/observed_engine.h"
#include "engine/state_memory.h"
#include "engine/step_arrays.h"
#include "engine/weight_store.h"
#include "models/model.h"
#include "ops/sample/sample.h"
#include "ops/select.h"

namespace assay::engine {

// Everything load() makes. Members in order of construction; later ones refer to earlier ones.
struct EngineParts {
  checkpoint::TextConfig config;
  std::unique_ptr<checkpoint::Checkpoint> checkpoint;  // null with dummy weights
  checkpoint::DummyWeights dummy;
  std::unique_ptr<device::Device> device;
  std::vector<device::Buffer> checkpoint_copies;  // a file each, or none: its tensors point there, or are mapped
  std::unique_ptr<backend::HostLink> link;
  std::unique_ptr<WeightStore> weights;
  std::unique_ptr<ops::Selector> selector;
  ops::OpObserver* observer = nullptr;  // null: nobody
  std::unique_ptr<models::Model> model;
  std::unique_ptr<models::ForwardPlan> forward;
  ops::PlanPtr<ops::SampleOp> sample;
  StateMemory state;
  StepArrays arrays;
  device::Buffer workspace;
  device::Buffer logits;         // F32 [max_step_outputs, vocab]
  device::Buffer sample_params;  // [max_step_outputs]
  device::Buffer sample_results;
  device::Buffer sample_adjustments;  // [max_step_adjustments]
  device::Buffer sentinel;            // [layers + 1] words
  EngineLimits limits;
  ModelSummary summary;
  proof::Report report;
};

// Errors: kResource (host memory).
Result<std::unique_ptr<ObservedEngine>> make_local_engine(EngineParts parts);

}  // namespace assay::engine

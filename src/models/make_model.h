// From a config to the model that runs it.
#pragma once

#include <memory>

#include "checkpoint/binder.h"
#include "checkpoint/config.h"
#include "models/model.h"

namespace assay::models {

// Errors: kCheckpoint naming the tensor; kUnsupported for an architecture without a model.
Result<std::unique_ptr<Model>> make_model(const checkpoint::TextConfig& config, checkpoint::Binder& binder,
                                          const AddWeight& add, DType activation);

}  // namespace assay::models

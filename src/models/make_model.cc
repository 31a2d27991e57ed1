#include "models/make_model.h"

#include "models/qwen35.h"

namespace assay::models {

Result<std::unique_ptr<Model>> make_model(const checkpoint::TextConfig& config, checkpoint::Binder& binder,
                                          const AddWeight& add, DType activation) {
  if (config.model_type.starts_with("qwen3_5")) return make_qwen35(config, binder, add, activation);
  return Error{ErrorKind::kUnsupported, "no model for this architecture", "config.json: model_type",
               config.model_type,       "qwen3_5, qwen3_5_moe",           ""};
}

}  // namespace assay::models

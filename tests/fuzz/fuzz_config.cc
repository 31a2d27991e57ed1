// config.json and generation_config.json of any bytes; an accepted config must hold what the model code relies on.
#include "checkpoint/config.h"
#include "fuzz/fuzz_util.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = assay::fuzz::text_of(data, size);
  (void)assay::fuzz::accepted(assay::checkpoint::parse_generation_config(text, "generation_config.json"));
  const auto config = assay::checkpoint::parse_text_config(text, "config.json");
  if (!assay::fuzz::accepted(config)) return 0;
  const bool sound = config->num_layers == static_cast<int64_t>(config->layer_types.size()) && config->num_layers > 0 &&
                     config->hidden_size > 0 && config->vocab_size > 0 && config->rms_norm_eps > 0 &&
                     config->num_heads % config->num_kv_heads == 0 && config->rotary_dim > 0 &&
                     config->rotary_dim <= config->head_dim && config->rotary_dim % 2 == 0 &&
                     config->gdn_value_heads % config->gdn_key_heads == 0 &&
                     config->experts_per_token <= config->num_experts &&
                     (config->num_experts > 0 || config->intermediate_size > 0);
  if (!sound) std::abort();
  return 0;
}

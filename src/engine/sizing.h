// How large everything of an engine is, found out before any of it is allocated: limits of a step, plans' workspaces,
// packed weights, KV pages and state slots, made to fit into what may be used (engine/ledger.h).
#pragma once

#include <cstdint>

#include "base/result.h"
#include "engine/ledger.h"
#include "engine/load.h"
#include "engine/local_engine.h"
#include "engine/weight_store.h"
#include "ops/impl.h"
#include "ops/sample/sample.h"

namespace assay::engine {

inline constexpr int32_t kPageTokens = 64;

// Sets parts.limits and the ledger; parts hold the model, its weights' sources and the device. Errors: kResource,
// kInvalidArgument (fit_memory), and what planning the model gives.
Result<void> size_parts(EngineParts& parts, const LoadOptions& options);

// The weights of the rows that are chosen as things stand, in their layouts.
Result<PackingList> packing_list(const EngineParts& parts);

// The ledger's lines for these weights and the limits as they are.
void write_ledger(EngineParts& parts, const LoadOptions& options, const PackingList& weights);

StepBytes step_bytes(const EngineParts& parts, const LoadOptions& options);
int64_t sentinel_bytes(const EngineParts& parts);
// Of a KV page and of a slot of recurrent state, over all layers.
int64_t page_bytes(const EngineParts& parts, const LoadOptions& options);
int64_t slot_bytes(const EngineParts& parts, const LoadOptions& options);

// The largest step, as plans are made for it.
ops::Bucket largest_bucket(const EngineLimits& limits);
ops::SampleDesc sample_desc(const EngineParts& parts, const LoadOptions& options);

}  // namespace assay::engine

#include "engine/state_memory.h"

#include <utility>

namespace assay::engine {
namespace {

constexpr int kPoison = 0xff;  // every fp32, fp16 and bf16 of these bytes is a NaN

int64_t page_elements(const models::StateShape& shape, int32_t page_tokens) {
  return int64_t{shape.kv_heads} * page_tokens * shape.head_dim;
}

}  // namespace

int64_t StateMemory::page_bytes(const models::StateShape& shape, int32_t page_tokens, DType activation) {
  int64_t layers = 0;
  for (models::StateKind kind : shape.layers) layers += kind == models::StateKind::kKv;
  return 2 * layers * page_elements(shape, page_tokens) * static_cast<int64_t>(dtype_bytes(activation));
}

int64_t StateMemory::slot_bytes(const models::StateShape& shape, DType activation) {
  int64_t layers = 0;
  for (models::StateKind kind : shape.layers) layers += kind == models::StateKind::kRecurrent;
  return layers * (shape.conv_elements * static_cast<int64_t>(dtype_bytes(activation)) +
                   shape.delta_elements * static_cast<int64_t>(sizeof(float)));
}

Result<StateMemory> StateMemory::make(device::Device& device, const models::StateShape& shape, const StateSizes& sizes,
                                      DType activation) {
  StateMemory memory;
  memory.device_ = &device;
  memory.kv_.resize(shape.layers.size());
  memory.recurrent_.resize(shape.layers.size());
  for (size_t i = 0; i < shape.layers.size(); ++i) {
    if (shape.layers[i] == models::StateKind::kKv) {
      ASSAY_ASSIGN(memory.kv_[i], memory.kv_layer(shape, sizes, activation));
    } else {
      ASSAY_ASSIGN(memory.recurrent_[i], memory.recurrent_layer(shape, sizes, activation));
    }
  }
  return memory;
}

Result<void*> StateMemory::allocate(size_t bytes) {
  ASSAY_ASSIGN(device::Buffer buffer, device_->allocate(bytes));
  device_->fill(buffer.data(), kPoison, bytes);
  buffers_.push_back(std::move(buffer));
  return buffers_.back().data();
}

Result<ops::KvCacheView> StateMemory::kv_layer(const models::StateShape& shape, const StateSizes& sizes,
                                               DType activation) {
  ops::KvCacheView view;
  view.dtype = activation;
  view.page_tokens = sizes.page_tokens;
  view.kv_heads = shape.kv_heads;
  view.head_dim = shape.head_dim;
  view.page_stride = page_elements(shape, sizes.page_tokens);
  const size_t bytes =
      static_cast<size_t>(view.page_stride) * dtype_bytes(activation) * static_cast<size_t>(sizes.page_count);
  ASSAY_ASSIGN(view.k, allocate(bytes));
  ASSAY_ASSIGN(view.v, allocate(bytes));
  return view;
}

Result<ops::RecurrentStateView> StateMemory::recurrent_layer(const models::StateShape& shape, const StateSizes& sizes,
                                                             DType activation) {
  ops::RecurrentStateView view;
  view.conv_dtype = activation;
  view.conv_stride = shape.conv_elements;
  view.delta_stride = shape.delta_elements;
  const auto slots = static_cast<size_t>(sizes.slot_count);
  ASSAY_ASSIGN(view.conv, allocate(slots * static_cast<size_t>(shape.conv_elements) * dtype_bytes(activation)));
  ASSAY_ASSIGN(void* delta, allocate(slots * static_cast<size_t>(shape.delta_elements) * sizeof(float)));
  view.delta = static_cast<float*>(delta);
  return view;
}

void StateMemory::poison_page(int32_t page) {
  for (const ops::KvCacheView& view : kv_) {
    if (view.k == nullptr) continue;
    const size_t bytes = static_cast<size_t>(view.page_stride) * dtype_bytes(view.dtype);
    device_->fill(static_cast<char*>(view.k) + static_cast<size_t>(page) * bytes, kPoison, bytes);
    device_->fill(static_cast<char*>(view.v) + static_cast<size_t>(page) * bytes, kPoison, bytes);
  }
}

void StateMemory::poison_slot(int32_t slot) {
  for (const ops::RecurrentStateView& view : recurrent_) {
    if (view.conv == nullptr) continue;
    const size_t conv_bytes = static_cast<size_t>(view.conv_stride) * dtype_bytes(view.conv_dtype);
    device_->fill(static_cast<char*>(view.conv) + static_cast<size_t>(slot) * conv_bytes, kPoison, conv_bytes);
    device_->fill(view.delta + slot * view.delta_stride, kPoison,
                  static_cast<size_t>(view.delta_stride) * sizeof(float));
  }
}

}  // namespace assay::engine

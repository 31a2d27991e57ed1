#include "engine/state_memory.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/hash.h"
#include "numeric/bf16.h"

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
  memory.sizes_ = sizes;
  memory.kv_.resize(shape.layers.size());
  memory.recurrent_.resize(shape.layers.size());
  for (size_t i = 0; i < shape.layers.size(); ++i) {
    if (shape.layers[i] == models::StateKind::kKv) {
      ASSAY_ASSIGN(memory.kv_[i], memory.kv_layer(shape, sizes, activation));
    } else {
      ASSAY_ASSIGN(memory.recurrent_[i], memory.recurrent_layer(shape, sizes, activation));
    }
  }
  ASSAY_TRY(memory.list_places(shape));
  return memory;
}

Result<void> StateMemory::list_places(const models::StateShape& shape) {
  std::vector<backend::Places> pages, slots;
  const auto whole = [](void* base, int64_t bytes) {
    return backend::Places{static_cast<std::byte*>(base), bytes, 0, 1, static_cast<int32_t>(bytes)};
  };
  for (const ops::KvCacheView& view : kv_) {
    if (view.k == nullptr) continue;
    const int64_t bytes = view.page_stride * static_cast<int64_t>(dtype_bytes(view.dtype));
    pages.push_back(whole(view.k, bytes));
    pages.push_back(whole(view.v, bytes));
  }
  constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
  for (const ops::RecurrentStateView& view : recurrent_) {
    if (view.conv == nullptr) continue;
    slots.push_back(whole(view.conv, view.conv_stride * static_cast<int64_t>(dtype_bytes(view.conv_dtype))));
    slots.push_back({reinterpret_cast<std::byte*>(view.delta), view.delta_stride * kFloat,
                     view.delta_stride / shape.delta_heads * kFloat, shape.delta_heads,
                     static_cast<int32_t>(shape.delta_columns * kFloat)});
  }
  page_arrays_ = static_cast<int32_t>(pages.size());
  slot_arrays_ = static_cast<int32_t>(slots.size());
  ASSAY_ASSIGN(page_places_, upload(pages));
  ASSAY_ASSIGN(slot_places_, upload(slots));
  return {};
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

Result<device::Buffer> StateMemory::upload(const std::vector<backend::Places>& arrays) {
  const size_t bytes = arrays.size() * sizeof(backend::Places);
  ASSAY_ASSIGN(device::Buffer buffer, device_->allocate(bytes));
  device_->upload(buffer.data(), arrays.data(), bytes);
  return buffer;
}

void StateMemory::poison(backend::HostLink& link, std::span<const int32_t> pages, std::span<const int32_t> slots) {
  link.poison(static_cast<const backend::Places*>(page_places_.data()), page_arrays_, pages);
  link.poison(static_cast<const backend::Places*>(slot_places_.data()), slot_arrays_, slots);
}

void StateMemory::fill_noise(uint64_t seed) {
  for (const ops::KvCacheView& view : kv_) {
    if (view.k == nullptr) continue;
    fill_noise(view.k, view.dtype, view.page_stride * sizes_.page_count, ++seed);
    fill_noise(view.v, view.dtype, view.page_stride * sizes_.page_count, ++seed);
  }
  for (const ops::RecurrentStateView& view : recurrent_) {
    if (view.conv == nullptr) continue;
    fill_noise(view.conv, view.conv_dtype, view.conv_stride * sizes_.slot_count, ++seed);
    fill_noise(view.delta, DType::kF32, view.delta_stride * sizes_.slot_count, ++seed);
  }
}

// One block over and over. Its length is odd, so every page and slot holds another stretch of it.
void StateMemory::fill_noise(void* to, DType dtype, int64_t elements, uint64_t seed) {
  constexpr int64_t kBlock = (1 << 18) - 1;
  const auto bytes = static_cast<int64_t>(dtype_bytes(dtype));
  std::vector<std::byte> block(static_cast<size_t>(std::min(elements, kBlock) * bytes));
  for (int64_t i = 0; i < std::min(elements, kBlock); ++i) {
    const auto bits = static_cast<int32_t>(hash_fold(seed, static_cast<uint64_t>(i)));
    const float value = static_cast<float>(bits) * 0x1p-31f;
    const numeric::Bf16 half = numeric::bf16_from_float(value);
    std::memcpy(block.data() + i * bytes, dtype == DType::kF32 ? static_cast<const void*>(&value) : &half,
                static_cast<size_t>(bytes));
  }
  for (int64_t done = 0; done < elements; done += kBlock) {
    device_->upload(static_cast<std::byte*>(to) + done * bytes, block.data(),
                    static_cast<size_t>(std::min(kBlock, elements - done) * bytes));
  }
}

}  // namespace assay::engine

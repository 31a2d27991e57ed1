#include "scheduler/delivery.h"

#include <chrono>
#include <utility>

#include "base/check.h"

namespace assay::scheduler {
namespace {

constexpr size_t kMaxEvents = 4096;  // of about 200 bytes
constexpr size_t kMaxRetired = 4096;

}  // namespace

Delivery::Delivery() : thread_([this] { run(); }) {}

Delivery::~Delivery() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  filled_.notify_one();
  thread_.join();
}

Delivery::Batch Delivery::reserved_batch() {
  Batch batch;
  batch.events.reserve(kMaxEvents);
  batch.retired.reserve(kMaxRetired);
  return batch;
}

void Delivery::add(uint64_t id, std::shared_ptr<RequestSink> sink) {
  const std::lock_guard lock(sinks_mutex_);
  sinks_.emplace(id, std::move(sink));
}

void Delivery::push(std::span<const Event> events, std::vector<std::unique_ptr<Sequence>>& retired) {
  if (events.empty() && retired.empty()) return;
  std::unique_lock lock(mutex_);
  const auto wait_for_room = [&](const auto& list, size_t most) {
    if (list.size() < most) return;
    filled_.notify_one();
    emptied_.wait(lock, [&] { return list.size() < most; });
  };
  for (const Event& event : events) {
    wait_for_room(filling_.events, kMaxEvents);
    filling_.events.push_back(event);
  }
  for (std::unique_ptr<Sequence>& sequence : retired) {
    wait_for_room(filling_.retired, kMaxRetired);
    filling_.retired.push_back(std::move(sequence));
  }
  retired.clear();
  lock.unlock();
  filled_.notify_one();
}

bool Delivery::flush(int64_t timeout_us) {
  std::unique_lock lock(mutex_);
  return emptied_.wait_for(lock, std::chrono::microseconds(timeout_us),
                           [this] { return filling_.empty() && !delivering_; });
}

void Delivery::run() {
  Batch batch = reserved_batch();
  std::unique_lock lock(mutex_);
  while (true) {
    filled_.wait(lock, [this] { return stopping_ || !filling_.empty(); });
    if (filling_.empty()) return;
    std::swap(batch, filling_);
    delivering_ = true;
    lock.unlock();
    emptied_.notify_all();
    for (const Event& event : batch.events) call_sink(event);
    batch.events.clear();
    batch.retired.clear();
    lock.lock();
    delivering_ = false;
    if (filling_.empty()) emptied_.notify_all();
  }
}

void Delivery::call_sink(const Event& event) {
  std::shared_ptr<RequestSink> sink;
  {
    const std::lock_guard lock(sinks_mutex_);
    const auto found = sinks_.find(event.id);
    CHECK(found != sinks_.end(), "event of request {}, which has no sink", event.id);
    if (std::holds_alternative<FinishEvent>(event.what)) {
      sink = std::move(found->second);
      sinks_.erase(found);
    } else {
      sink = found->second;
    }
  }
  if (const auto* prompt = std::get_if<PromptLogprobsEvent>(&event.what)) {
    sink->on_prompt_logprobs(prompt->results);
  } else if (const auto* token = std::get_if<TokenEvent>(&event.what)) {
    sink->on_token(*token);
  } else {
    sink->on_finish(std::get<FinishEvent>(event.what));
  }
}

}  // namespace assay::scheduler

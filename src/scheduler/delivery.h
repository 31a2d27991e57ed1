// Delivery: the way from the engine thread to the sinks.
//
// The engine thread runs no caller's code: it writes events into a list that was allocated once and goes on. A thread
// of the delivery's own swaps that list for an empty one, calls the sinks, and frees what is finished. So sinks may
// allocate and lock; one that is slow lets the list fill up, and then the engine thread waits.
//
// Owner: a Loop. add() may be called from any thread; push() by the engine thread alone, which must push no more when
// this is destroyed.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <unordered_map>
#include <vector>

#include "scheduler/request.h"
#include "scheduler/scheduler.h"

namespace assay::scheduler {

class Delivery {
 public:
  Delivery();
  ~Delivery();  // delivers what was pushed
  Delivery(const Delivery&) = delete;
  Delivery& operator=(const Delivery&) = delete;

  // Before the first event of `id`. The sink is let go after its finish.
  void add(uint64_t id, std::shared_ptr<RequestSink> sink);
  // Takes the events, and the sequences that they may point into, in this order. Leaves `retired` empty. Allocates
  // nothing.
  void push(std::span<const Event> events, std::vector<std::unique_ptr<Sequence>>& retired);
  // Whether all that was pushed before is delivered within the time.
  bool flush(int64_t timeout_us);

 private:
  struct Batch {
    std::vector<Event> events;
    std::vector<std::unique_ptr<Sequence>> retired;
    bool empty() const { return events.empty() && retired.empty(); }
  };
  static Batch reserved_batch();

  void run();
  void call_sink(const Event& event);

  std::mutex mutex_;  // guards filling_, delivering_, stopping_
  std::condition_variable filled_;
  std::condition_variable emptied_;
  Batch filling_ = reserved_batch();
  bool delivering_ = false;
  bool stopping_ = false;

  std::mutex sinks_mutex_;
  std::unordered_map<uint64_t, std::shared_ptr<RequestSink>> sinks_;

  std::thread thread_;
};

}  // namespace assay::scheduler

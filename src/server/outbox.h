// The way from the engine thread to the IO thread: one wake for all tokens of a step.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace assay::server {

// Who has something for the IO thread.
class Outgoing {
 public:
  virtual ~Outgoing() = default;
  virtual void pump() = 0;  // IO thread
};

// Thread-safe. notify() after close() does nothing.
class Outbox : public std::enable_shared_from_this<Outbox> {
 public:
  using Post = std::function<void(std::function<void()>)>;
  explicit Outbox(Post post_io) : post_io_(std::move(post_io)) {}

  void notify(std::shared_ptr<Outgoing> item) {
    const std::lock_guard lock(mutex_);
    if (!post_io_) return;
    items_.push_back(std::move(item));
    if (items_.size() == 1) post_io_([self = shared_from_this()] { self->pump(); });
  }

  // Waits for a notify() that is under way; nothing is posted from then on.
  void close() {
    const std::lock_guard lock(mutex_);
    post_io_ = nullptr;
    items_.clear();
  }

 private:
  void pump() {
    std::vector<std::shared_ptr<Outgoing>> items;
    {
      const std::lock_guard lock(mutex_);
      items.swap(items_);
    }
    for (const auto& item : items) item->pump();
  }

  std::mutex mutex_;
  Post post_io_;
  std::vector<std::shared_ptr<Outgoing>> items_;
};

}  // namespace assay::server

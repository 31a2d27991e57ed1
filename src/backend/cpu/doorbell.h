// Doorbell: a thread sleeps at it until another rings. A 32-bit word changes with what is waited for:
//
//   sleeper:  seen = word;  if (nothing to do) doorbell.sleep(word, seen);  look again
//   ringer:   change the word (seq_cst);  doorbell.ring(word)
//
// No ring is lost: a sleeper says that it sleeps before the kernel compares the word with `seen`, and a ringer looks
// for sleepers after its change. Ringing costs a load while nobody sleeps. std::atomic::wait would yield before it
// sleeps: beside a busy neighbour that gives the core away for milliseconds.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

namespace assay::cpu {

class Doorbell {
 public:
  // Returns when rung, when the word is not `seen`, or for no reason.
  void sleep(const std::atomic<uint32_t>& word, uint32_t seen) {
    asleep_.store(true, std::memory_order_seq_cst);
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
  }

  // Wakes all who sleep.
  void ring(const std::atomic<uint32_t>& word) {
    if (asleep_.load(std::memory_order_seq_cst) && asleep_.exchange(false, std::memory_order_seq_cst)) {
      syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
    }
  }

 private:
  static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t) && std::atomic<uint32_t>::is_always_lock_free);

  std::atomic<bool> asleep_{false};
};

}  // namespace assay::cpu

// SPDX-License-Identifier: Apache-2.0
// Poller: one epoll for everything a messenger waits for, and the eventfd that ends a wait. wake() may be called from
// any thread; everything else from the messenger's. A handler may add and remove handlers, itself included.
//
// Memory that other processes change is polled as well, without a system call while there is something in it. Before it
// sleeps the poller arms the memory, as a UCX worker is armed: whoever changes it then makes a descriptor ready.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "comm/io/clock.h"
#include "runtime/base/status.h"

namespace agspeed::comm {

/// What other processes change without the kernel's knowledge.
class PolledMemory {
 public:
  /// Handles what has changed. Returns: whether anything had.
  virtual bool poll() = 0;
  /// From now on whoever changes something makes a descriptor of the poller ready; poll() follows once more.
  virtual void arm() = 0;
  /// Nobody needs to make a descriptor ready any more.
  virtual void disarm() = 0;

 protected:
  ~PolledMemory() = default;
};

class Poller {
 public:
  class Handler {
   public:
    /// The descriptor has these epoll events.
    virtual void ready(uint32_t events) = 0;

   protected:
    ~Handler() = default;
  };
  using Id = uint32_t;

  Poller();
  ~Poller();
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;

  /// Ok, or why nothing can be polled: the process has no descriptor left, say. Then the poller is of no use.
  const Status& status() const { return status_; }
  /// Calls the handler when the descriptor has one of `events`, until remove(). The descriptor stays the caller's.
  Id add(int descriptor, uint32_t events, Handler& handler);
  void remove(Id id, int descriptor);

  /// What to poll besides; nullptr: nothing any more. Stays the caller's.
  void setMemory(PolledMemory* memory) { memory_ = memory; }

  /// Waits until something is ready, wake() was called or `until`, and calls the handlers once. What becomes ready
  /// before `coalesceUntil`, memory included, is left until then or until wake(); not where `until` is no time at all,
  /// nor where the last call left something that is ready. Returns: whether wake() was called.
  bool wait(Clock::time_point until, Clock::time_point coalesceUntil = {});
  void wake();
  /// Readable while wait() would find something ready, memory aside. From any thread.
  int descriptor() const { return epoll_; }

 private:
  bool waitForDescriptors(Clock::time_point until);
  /// Those who change the memory may need this processor. Returns: whether it has changed, before `until`.
  bool letOthersRun(Clock::time_point until);
  /// Waits for nothing but wake(). Returns: whether it did.
  bool coalesce(Clock::time_point until) const;

  struct Slot {
    Handler* handler = nullptr;
    uint32_t generation = 0;
  };
  int epoll_;
  int wakeUp_;
  Status status_;
  std::vector<Slot> slots_;
  std::vector<Id> freeSlots_;
  PolledMemory* memory_ = nullptr;
  uint32_t numPolls_ = 0;     ///< that found a change
  bool isMoreReady_ = false;  ///< than the last wait could take in
  std::atomic<bool> isWakeDue_ = false;
  bool isAnswerQuick_ = false;  ///< the memory changed soon after it was armed, or while others ran
  Clock::duration crowdedFor_{};
  Clock::time_point crowdedUntil_{};  ///< others need the processor
};

}  // namespace agspeed::comm

// SPDX-License-Identifier: Apache-2.0
// Poller: waits with one epoll for everything that a messenger needs; wake() ends the wait through an eventfd. Any
// thread may call wake() and descriptor(); only the messenger's thread may call the other functions. A handler may add
// and remove handlers, itself included.
//
// The poller also polls memory that other processes write. This needs no system call as long as every poll finds
// changes. Before the poller sleeps, it arms the memory, as a UCX worker is armed: a process that then writes makes a
// descriptor ready.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "comm/io/clock.h"
#include "runtime/base/status.h"

namespace agspeed::comm::io {

/// Memory that other processes write without a system call, so that epoll does not see the changes.
class PolledMemory {
 public:
  /// Handles all changes. Returns: whether there were any.
  virtual bool poll() = 0;
  /// Arms the memory: from now on, a process that writes the memory makes a descriptor of the poller ready. The poller
  /// calls poll() once more afterwards.
  virtual void arm() = 0;
  /// Disarms the memory: a process that writes the memory need not make a descriptor ready any more.
  virtual void disarm() = 0;

 protected:
  ~PolledMemory() = default;
};

class Poller {
 public:
  class Handler {
   public:
    /// Handles a descriptor that has these epoll events. wait() calls it.
    virtual void ready(uint32_t events) = 0;

   protected:
    ~Handler() = default;
  };
  using Id = uint32_t;

  Poller();
  ~Poller();
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;

  /// Returns Ok, or the reason why the poller cannot be used, for example that the process has no free descriptor.
  const Status& status() const { return status_; }
  /// Calls the handler when the descriptor has one of `events`, until remove(). The caller owns the descriptor.
  Id add(int descriptor, uint32_t events, Handler& handler);
  void remove(Id id, int descriptor);

  /// Sets the memory to poll besides descriptors; nullptr: none. The caller owns it.
  void setMemory(PolledMemory* memory) { memory_ = memory; }

  /// Waits until a descriptor is ready, the memory has changed, wake() was called, or `until` has passed. Then handles
  /// the events of all ready descriptors once. Before `coalesceUntil` only wake() ends the wait, so that one call
  /// handles more events; changes of memory wait, too. The call does not coalesce in two cases: if `until` is the zero
  /// time point, or if the last call fetched the largest possible number of events. Returns: whether wake() was called.
  bool wait(Clock::time_point until, Clock::time_point coalesceUntil = {});
  /// Ends the current wait(), or the next one. From any thread.
  void wake();
  /// Returns a descriptor that is readable while another descriptor of the poller is ready; changes of memory do not
  /// make it readable. From any thread.
  int descriptor() const { return epoll_; }

 private:
  bool waitForDescriptors(Clock::time_point until);
  /// Yields this processor, so that a process that waits for it can write the watched shared memory. Returns: whether
  /// the memory changed before `until`.
  bool yieldToWriters(Clock::time_point until);
  /// Sleeps until wake() is called or `until` has passed, so that one wake-up handles several arrivals. Returns false
  /// at once if the wait would be short.
  bool coalesce(Clock::time_point until) const;

  /// The handler with one id. `generation` counts removals, so that events of a removed handler do not reach the next
  /// handler with the same id.
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
  uint32_t numPolls_ = 0;     ///< number of polls of the memory that found a change
  bool isMoreReady_ = false;  ///< the last wait fetched kMaxEvents events, so more may be ready
  std::atomic<bool> isWakeDue_ = false;
  bool isAnswerQuick_ = false;        ///< memory last changed soon after it was armed: yield before the next sleep
  Clock::duration noYieldFor_{};      ///< how long wait() does not yield after a long yield
  Clock::time_point noYieldUntil_{};  ///< wait() does not yield before this time, because other processes need the CPU
};

}  // namespace agspeed::comm::io

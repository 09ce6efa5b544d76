// SPDX-License-Identifier: Apache-2.0
// A handle of something that was started: a collective, a send or a receive.
//
// Thread-safety: all functions, from any thread; wait() not from the engine's driver. Ownership: shared; dropping a
// handle does not end the operation, whose bytes must stay in place until it is done. Handles may outlive their group
// but not their engine.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "comm/engine/engine.h"

namespace agspeed::comm {

/// Whether what an operation reads is in its memory by now; a failure ends its group. Asked again and again on the
/// driver until it is.
using Readiness = std::function<StatusOr<bool>()>;

class Operation {
 public:
  using Callback = std::function<void(const Status&)>;

  explicit Operation(Engine& engine) : engine_(engine) {}
  virtual ~Operation() = default;

  bool isDone() const { return isDone_; }
  /// Ok, or why there is no result. Requires: isDone().
  const Status& status() const { return status_; }
  /// When it ended. Requires: isDone().
  Clock::time_point endedAt() const { return endedAt_; }
  /// Of a receive: whose message it was, by rank of the group; -1 of anything else. Requires: isDone().
  virtual int sourceRank() const { return -1; }
  /// isDone(), after a round of driving without waiting if nobody else drives: for those who poll.
  bool poll();
  /// Drives the engine until the operation is done. Every operation ends: at its deadline at the latest.
  Status wait();
  /// The same, but at most until then. Returns: isDone().
  bool waitUntil(Clock::time_point until) { return engine_.wait(isDone_, until); }
  /// Calls back once on the engine's thread for callbacks, soon if the operation is done already.
  void whenDone(Callback callback);

  /// As whenDone(), but on the driver, within complete(). Requires: nobody else knows the operation yet.
  void setDriverCallback(Callback callback) {
    driverCallback_ = std::move(callback);
    hasCallbacks_ = true;
  }

  /// Ends the operation. On the driver, or before anybody else knows it; once, and once more after each restart().
  void complete(Status status, Clock::time_point now = Clock::now());
  /// It is under way again. Requires: it is done, the caller alone uses it, and it has had no callbacks. The driver may
  /// still be within complete().
  void restart();

 private:
  Engine& engine_;
  std::atomic<bool> isDone_ = false;
  std::atomic<bool> hasCallbacks_ = false;  ///< or is about to: whoever ends the operation looks
  std::atomic<uint64_t> numRestarts_ = 0;
  Status status_;
  Clock::time_point endedAt_{};
  Callback driverCallback_;
  std::mutex mutex_;  ///< guards callbacks_
  std::vector<Callback> callbacks_;
};

using OperationHandle = std::shared_ptr<Operation>;

/// Asks `readiness`, if there is one, and drops it once the input is there; else the engine ticks soon. On the driver.
StatusOr<bool> isInputReady(Readiness& readiness, Engine& engine);

}  // namespace agspeed::comm

// SPDX-License-Identifier: Apache-2.0
// Operation: a collective, a send or a receive that was started.
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

/// Whether the input of an operation is in its memory by now. The driver calls it repeatedly until it returns true. A
/// failure ends the operation's group.
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
  /// For a receive: the rank of the group that sent the message; -1 for other operations. Requires: isDone().
  virtual int sourceRank() const { return -1; }
  /// isDone(), after one round of driving without waiting if no other thread drives. For callers that poll.
  bool poll();
  /// Drives the engine until the operation is done. Every operation ends, at its deadline at the latest.
  Status wait();
  /// Like wait(), but at most until `until`. Returns: isDone().
  bool waitUntil(Clock::time_point until) { return engine_.wait(isDone_, until); }
  /// Runs `callback` once on a callback thread of the engine; soon if the operation is done already.
  void whenDone(Callback callback);

  /// Like whenDone(), but `callback` runs on the driver, within complete(). Requires: no other thread has the operation
  /// yet.
  void setDriverCallback(Callback callback) {
    driverCallback_ = std::move(callback);
    hasCallbacks_ = true;
  }

  /// Ends the operation. Call it on the driver, or before another thread has the operation; once, and once more after
  /// each restart().
  void complete(Status status, Clock::time_point now = Clock::now());
  /// Makes the operation unfinished again. Requires: it is done, only the caller uses it, and it has had no callbacks.
  /// The driver may still be within complete().
  void restart();

 private:
  Engine& engine_;
  std::atomic<bool> isDone_ = false;
  std::atomic<bool> hasCallbacks_ = false;  ///< a callback was or is being added, so complete() must check for it
  std::atomic<uint64_t> numRestarts_ = 0;
  Status status_;
  Clock::time_point endedAt_{};
  Callback driverCallback_;
  std::mutex mutex_;  ///< guards callbacks_
  std::vector<Callback> callbacks_;
};

using OperationHandle = std::shared_ptr<Operation>;

/// Calls `readiness`, if set. If the input is ready, clears `readiness`; else requests a tick of the engine soon. On
/// the driver.
StatusOr<bool> isInputReady(Readiness& readiness, Engine& engine);

}  // namespace agspeed::comm

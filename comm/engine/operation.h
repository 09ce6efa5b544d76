// SPDX-License-Identifier: Apache-2.0
// Operation: a collective, send or receive that was started.
//
// Thread-safety: any thread may call all functions, unless their comment says otherwise; the engine's driver must not
// call wait() and waitUntil(). Ownership: shared. If a handle is dropped, the operation still runs, and its bytes must
// stay in place until it is done. Handles may outlive their group but not their engine.
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

namespace agspeed::comm::engine {

/// Returns whether the input of an operation is in its memory yet. The driver calls it repeatedly until it returns
/// true. If it fails, the operation's group fails.
using Readiness = std::function<StatusOr<bool>()>;

class Operation {
 public:
  using Callback = std::function<void(const Status&)>;

  explicit Operation(Engine& engine) : engine_(engine) {}
  virtual ~Operation() = default;

  bool isDone() const { return isDone_; }
  /// Returns Ok, or the reason why the operation failed. Requires: isDone().
  const Status& status() const { return status_; }
  /// Returns when the operation completed. Requires: isDone().
  io::Clock::time_point endedAt() const { return endedAt_; }
  /// Returns the rank of the group that sent the received message; -1 for operations other than receives. Requires:
  /// isDone().
  virtual int sourceRank() const { return -1; }
  /// Drives the engine for one round if no other thread drives it; wakes the driver otherwise. Does nothing if the
  /// operation is done. Never waits for the network. Returns: isDone().
  bool poll();
  /// Waits until the operation is done, and drives the engine meanwhile. Returns: status(). Every operation completes:
  /// it fails when its deadline has passed.
  Status wait();
  /// Like wait(), but returns when `until` has passed. Returns: isDone().
  bool waitUntil(io::Clock::time_point until) { return engine_.wait(isDone_, until); }
  /// Makes the engine run `callback` once, on a callback thread, soon after the operation is done.
  void whenDone(Callback callback);

  /// Like whenDone(), but complete() calls `callback` itself, normally on the driver. Requires: no other thread has a
  /// handle of the operation yet.
  void setDriverCallback(Callback callback) {
    driverCallback_ = std::move(callback);
    hasCallbacks_ = true;
  }

  /// Completes the operation with `status`, and starts its callbacks. Call it once, and once more after each restart().
  /// Requires: the caller is the driver, or no other thread has a handle of the operation yet.
  void complete(Status status, io::Clock::time_point now = io::Clock::now());
  /// Makes a completed operation unfinished again, for another run. Requires: the operation is done, only the caller
  /// uses it, and it has had no callbacks. The driver may still be inside complete() for the previous run.
  void restart();

 private:
  Engine& engine_;
  std::atomic<bool> isDone_ = false;
  std::atomic<bool> hasCallbacks_ = false;  ///< a callback was or is being added, so complete() must check callbacks_
  std::atomic<uint64_t> numRestarts_ = 0;
  Status status_;
  io::Clock::time_point endedAt_{};
  Callback driverCallback_;
  std::mutex mutex_;  ///< guards callbacks_
  std::vector<Callback> callbacks_;
};

using OperationHandle = std::shared_ptr<Operation>;

/// Returns whether the input of an operation is ready: calls `readiness`, or returns true if `readiness` is null. If
/// the input is ready, sets `readiness` to null. Otherwise requests a tick of the engine soon, at which the caller
/// checks again. Requires: the caller is the driver.
StatusOr<bool> isInputReady(Readiness& readiness, Engine& engine);

}  // namespace agspeed::comm::engine

// SPDX-License-Identifier: Apache-2.0
#include "comm/engine/operation.h"

#include <utility>

namespace agspeed::comm::engine {
namespace {

/// The interval at which operations check whether their input is ready. Copies from a device take 10 us to some ms.
constexpr std::chrono::microseconds kReadyInterval{50};

}  // namespace

bool Operation::poll() {
  if (!isDone_) engine_.kick();
  return isDone_;
}

Status Operation::wait() {
  waitUntil(io::Clock::time_point::max());
  return status_;
}

void Operation::whenDone(Callback callback) {
  {
    std::lock_guard lock(mutex_);
    hasCallbacks_ = true;  // set it before reading isDone_: complete() sees it, or this function sees isDone_
    if (!isDone_) {
      callbacks_.push_back(std::move(callback));
      return;
    }
  }
  engine_.callLater([callback = std::move(callback), status = status_] { callback(status); });
}

void Operation::restart() {
  status_ = {};
  numRestarts_.fetch_add(1, std::memory_order_relaxed);
  isDone_.store(false, std::memory_order_relaxed);
}

void Operation::complete(Status status, io::Clock::time_point now) {
  status_ = std::move(status);
  endedAt_ = now;
  const uint64_t numRestarts = numRestarts_.load(std::memory_order_relaxed);
  isDone_ = true;
  if (!hasCallbacks_) return;
  std::vector<Callback> callbacks;
  {
    std::lock_guard lock(mutex_);
    // The caller may have restarted the operation meanwhile. Its callbacks then wait until the next run is complete.
    if (numRestarts_.load(std::memory_order_relaxed) != numRestarts) return;
    callbacks.swap(callbacks_);
  }
  for (auto& callback : callbacks) {
    engine_.callLater([callback = std::move(callback), status = status_] { callback(status); });
  }
  if (driverCallback_) std::exchange(driverCallback_, nullptr)(status_);
}

StatusOr<bool> isInputReady(Readiness& readiness, Engine& engine) {
  if (!readiness) return true;
  AG_ASSIGN_OR_RETURN(const bool isReady, readiness());
  if (isReady) {
    readiness = nullptr;
  } else {
    engine.tickBy(io::Clock::now() + kReadyInterval);
  }
  return isReady;
}

}  // namespace agspeed::comm::engine

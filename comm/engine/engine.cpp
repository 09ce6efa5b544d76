// SPDX-License-Identifier: Apache-2.0
#include "comm/engine/engine.h"

#include <algorithm>
#include <iterator>
#include <system_error>
#include <utility>

namespace agspeed::comm::engine {

namespace {

using std::chrono::milliseconds;

/// kNap is how long the background thread sleeps at a time while other threads drive or will probably drive again soon.
/// If it took over at once, the change of threads would cost a short operation more time than its messages. The
/// background thread takes over when no thread has called wait() or kick() for kIdleAfter.
constexpr milliseconds kNap{1};
constexpr milliseconds kIdleAfter{100};
/// The longest time for which a thread waits without checking again whether its operation is done.
constexpr milliseconds kLongWait{1000};
/// A new callback thread takes queued callbacks only if the other threads have taken none for (number of callback
/// threads) * kWaitPerThread. A new thread is needed only if callbacks wait for later callbacks, which is rare. The
/// time grows with the number of threads, because thousands of callbacks may wait for one lock of their caller, and
/// more threads would not help.
constexpr milliseconds kWaitPerThread{1};

io::Clock::rep now() { return io::Clock::now().time_since_epoch().count(); }

}  // namespace

Engine::Engine(messaging::Messenger& messenger, WireCoding coding)
    : messenger_(messenger), coder_(messenger, coding), lastUse_(now()) {
  try {
    callbackThreads_.emplace_back([this] { runCallbacks(); });
    backgroundThread_ = std::thread([this] { driveInBackground(); });
  } catch (const std::system_error&) {
    stop();
    throw;
  }
}

Engine::~Engine() { stop(); }

void Engine::stop() {
  {
    std::lock_guard lock(mutex_);
    isStopping_ = true;
    background_.notify_all();
    messenger_.wake();
  }
  if (backgroundThread_.joinable()) backgroundThread_.join();
  std::unique_lock lock(callbackMutex_);
  callbackAdded_.notify_all();
  while (!callbackThreads_.empty()) {
    std::thread thread = std::move(callbackThreads_.back());
    callbackThreads_.pop_back();
    lock.unlock();
    thread.join();
    lock.lock();
  }
}

bool Engine::isOwnThread() {
  const std::lock_guard lock(callbackMutex_);
  const auto isThis = [](const std::thread& thread) { return thread.get_id() == std::this_thread::get_id(); };
  return isThis(backgroundThread_) || std::any_of(callbackThreads_.begin(), callbackThreads_.end(), isThis);
}

void Engine::enqueueBy(io::Clock::time_point time, std::function<void()> action) {
  const std::lock_guard lock(mutex_);
  delayedActions_.push_back(std::move(action));
  if (time == io::Clock::time_point{}) return runDelayedSoon();
  if (time >= delayedUntil_.load()) return;
  delayedUntil_ = time;
  if (isDriven_) messenger_.wake();  // the driver may be waiting for the network beyond this time
}

void Engine::runDelayedSoon() {
  if (delayedActions_.empty()) return;
  std::move(delayedActions_.begin(), delayedActions_.end(), std::back_inserter(actions_));
  delayedActions_.clear();
  delayedUntil_ = io::Clock::time_point::max();
  hasActions_ = true;
}

void Engine::kick() {
  std::unique_lock lock(mutex_);
  lastUse_ = now();
  runDelayedSoon();
  if (isDriven_) return messenger_.wake();
  isDriven_ = true;
  lock.unlock();
  driveOnce({});
  lock.lock();
  isDriven_ = false;
  if (numWaiting_ > 0) handOver_.notify_all();
}

void Engine::runOnDriver(std::function<void()> action) {
  std::atomic<bool> isDone = false;
  enqueue([&] {
    action();
    isDone = true;
    wakeWaiting();
  });
  wait(isDone, io::Clock::time_point::max());
}

bool Engine::wait(const std::atomic<bool>& isDone, io::Clock::time_point until) {
  if (isDone) return true;
  std::unique_lock lock(mutex_);
  ++numWaiting_;
  ++numWaits_;
  runDelayedSoon();
  if (isDriven_) messenger_.wake();  // the background thread then stops driving
  while (!isDone && io::Clock::now() < until) {
    if (isDriven_) {
      // Wait in steps of kLongWait, because wait_until() could overflow if `until` is far in the future.
      handOver_.wait_until(lock, std::min(until, io::Clock::now() + kLongWait));
      continue;
    }
    isDriven_ = true;
    lock.unlock();
    while (!isDone && io::Clock::now() < until) driveOnce(until);
    lock.lock();
    isDriven_ = false;
    if (numWaiting_ > 1) handOver_.notify_all();
  }
  if (--numWaiting_ == 0 && isBackgroundAsleep_) background_.notify_one();
  lastUse_ = now();
  return isDone;
}

void Engine::callLater(std::function<void()> callback) {
  const std::lock_guard lock(callbackMutex_);
  callbacks_.push_back(std::move(callback));
  keepOneFree();
  callbackAdded_.notify_one();
}

void Engine::keepOneFree() {
  if (callbacks_.empty() || numFreeThreads_ > 0) return;
  try {
    callbackThreads_.emplace_back([this] {
      standBy();
      runCallbacks();
    });
    ++numFreeThreads_;
  } catch (const std::system_error&) {
    // The system allows no more threads; the next free thread takes the callback.
  }
}

void Engine::standBy() {
  std::unique_lock lock(callbackMutex_);
  uint64_t numSeen;
  do {
    numSeen = numCallbacksTaken_;
    const auto limit = kWaitPerThread * callbackThreads_.size();
    lock.unlock();
    std::this_thread::sleep_for(limit);
    lock.lock();
  } while (!callbacks_.empty() && numSeen != numCallbacksTaken_);
}

void Engine::runCallbacks() {
  std::unique_lock lock(callbackMutex_);
  while (!isStopping_ || !callbacks_.empty()) {
    if (callbacks_.empty()) {
      callbackAdded_.wait(lock);
      continue;
    }
    std::function<void()> callback = std::move(callbacks_.front());
    callbacks_.pop_front();
    ++numCallbacksTaken_;
    --numFreeThreads_;
    keepOneFree();
    lock.unlock();
    callback();
    callback = nullptr;
    lock.lock();
    ++numFreeThreads_;
  }
  --numFreeThreads_;
}

void Engine::addWork(Worker& worker, uint64_t token, int priority) {
  const auto at = std::upper_bound(work_.begin(), work_.end(), priority,
                                   [](int value, const WorkItem& item) { return value < item.priority; });
  work_.insert(at, {&worker, token, priority});
}

void Engine::removeWork(const Worker& worker) {
  std::erase_if(work_, [&](const WorkItem& item) { return item.worker == &worker; });
}

void Engine::operationEnded(int count) {
  numOperations_ -= count;
  wakeWaiting();
}

void Engine::wakeWaiting() {
  if (numWaiting_ == 0) return;
  // Take the lock. Otherwise a thread that has just found its operation unfinished, and is about to wait, would miss
  // the notification.
  std::lock_guard lock(mutex_);
  handOver_.notify_all();
}

void Engine::driveOnce(io::Clock::time_point until) {
  const bool hadActions = runActions();
  const bool hadWork = runWork();
  // Move bytes between two computations. Wait for the network only if this round has run no action and no computation.
  // Otherwise return at once, because the operation that a thread waits for may now be complete.
  const bool mayWait = !hadActions && !hadWork && work_.empty() && !hasActions_;
  messenger_.progress(mayWait ? std::min({until, nextTick_, delayedUntil_.load(), io::Clock::now() + kLongWait})
                              : io::Clock::time_point{});
  const auto time = io::Clock::now();
  if (time >= delayedUntil_.load()) {
    const std::lock_guard lock(mutex_);
    runDelayedSoon();
  }
  if (time < nextTick_) return;
  nextTick_ = io::Clock::time_point::max();
  for (EngineClient* client : clients_) tickBy(client->tick(time));
}

bool Engine::runActions() {
  if (!hasActions_) return false;
  {
    std::lock_guard lock(mutex_);
    running_.swap(actions_);
    hasActions_ = false;
  }
  for (auto& action : running_) action();
  running_.clear();
  return true;
}

bool Engine::runWork() {
  if (work_.empty()) return false;
  const WorkItem item = work_.front();
  work_.erase(work_.begin());
  item.worker->work(item.token);
  return true;
}

bool Engine::needsBackground() const {
  const auto time = io::Clock::now();
  return numOperations_ > 0 || hasActions_ || time >= delayedUntil_.load() ||
         time.time_since_epoch().count() - lastUse_ > io::Clock::duration(kIdleAfter).count() || messenger_.hasUnsent();
}

void Engine::driveInBackground() {
  std::unique_lock lock(mutex_);
  uint64_t numWaitsSeen = 0;
  while (!isStopping_) {
    if (isDriven_ || numWaiting_ > 0 || !needsBackground()) {
      // If a thread has waited for longer than a nap, sleep until no thread waits. Repeated naps of many ranks would
      // cost their host more than one wake-up.
      if (numWaiting_ > 0 && numWaitsSeen == numWaits_) {
        isBackgroundAsleep_ = true;
        background_.wait(lock, [&] { return isStopping_ || numWaiting_ == 0; });
        isBackgroundAsleep_ = false;
      }
      numWaitsSeen = numWaits_;
      background_.wait_for(lock, kNap);
      continue;
    }
    isDriven_ = true;
    lock.unlock();
    while (!isStopping_ && numWaiting_ == 0 && needsBackground()) driveOnce(io::Clock::time_point::max());
    lock.lock();
    isDriven_ = false;
    handOver_.notify_all();
  }
}

}  // namespace agspeed::comm::engine

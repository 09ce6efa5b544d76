// SPDX-License-Identifier: Apache-2.0
// Engine: drives one messenger and the operations of all groups of a process that use it.
//
// At most one thread drives at any time: it runs queued actions, computes, moves bytes and checks deadlines. A thread
// that waits for an operation drives until the operation is done, so that a short operation involves no other thread.
// While no thread waits, a background thread drives. A thread that starts an operation drives one round, so that the
// first bytes leave at once. Callbacks run on separate threads. Driving never runs Python and never takes a lock of the
// caller's.
//
// Threading: see each function. "On the driver" means: from an action, from Worker::work, from EngineClient::tick or
// from Transfer::finished.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/messaging/messenger.h"

namespace agspeed::comm {

/// An object with deadlines to check.
class EngineClient {
 public:
  /// On the driver. Returns: the latest time for the next call.
  virtual Clock::time_point tick(Clock::time_point now) = 0;

 protected:
  ~EngineClient() = default;
};

/// An object with computations to run between two polls of the network.
class Worker {
 public:
  /// On the driver, once per Engine::addWork().
  virtual void work(uint64_t token) = 0;

 protected:
  ~Worker() = default;
};

class Engine {
 public:
  /// `messenger` outlives the engine; only the engine uses it.
  explicit Engine(Messenger& messenger);
  /// Requires: no clients are left.
  ~Engine();
  Engine(const Engine&) = delete;

  // --- from any thread ---

  /// Queues an action for the driver; actions run in the order of these calls. Call kick() to run them soon.
  void enqueue(std::function<void()> action) { enqueueBy({}, std::move(action)); }
  /// Like enqueue(), for an action that may wait until `time`. It runs earlier if a thread kicks or waits, or if a
  /// later action must run earlier.
  void enqueueBy(Clock::time_point time, std::function<void()> action);
  /// Wakes the driver for new actions; if no thread drives, drives one round without waiting.
  void kick();
  /// Runs `action` on the driver and returns afterwards. Not from the driver itself.
  void runOnDriver(std::function<void()> action);
  /// Whether the calling thread is one that the destructor waits for, for example in a callback.
  bool isOwnThread();
  /// Drives, or lets another waiting thread drive, until `isDone` is set or `until` has passed. Returns: isDone. Not
  /// from the driver.
  bool wait(const std::atomic<bool>& isDone, Clock::time_point until);
  /// Runs `callback` on a callback thread. The callback may block, even until a later callback has run: if callbacks
  /// are queued and no callback thread becomes free for some milliseconds, the engine starts another one, if the system
  /// allows it.
  void callLater(std::function<void()> callback);

  // --- on the driver ---

  Messenger& messenger() { return messenger_; }
  void addClient(EngineClient& client) { clients_.push_back(&client); }
  void removeClient(EngineClient& client) { std::erase(clients_, &client); }
  /// Requests a tick() of the clients at `time` at the latest.
  void tickBy(Clock::time_point time) { nextTick_ = std::min(nextTick_, time); }
  /// Requests worker.work(token). Lower `priority` numbers run first, equal ones in the order of these calls.
  void addWork(Worker& worker, uint64_t token, int priority);
  void removeWork(const Worker& worker);
  /// Counts operations. The background thread drives while there are unfinished ones.
  void operationStarted(int count = 1) { numOperations_ += count; }
  void operationEnded(int count = 1);
  /// Makes waiting threads check whether they are done.
  void wakeWaiting();

 private:
  struct WorkItem {
    Worker* worker;
    uint64_t token;
    int priority;
  };

  void stop();
  void driveOnce(Clock::time_point until);
  /// Makes all held actions run in the next round. Requires: mutex_.
  void releaseActions();
  /// These two return whether there were actions, or work.
  bool runActions();
  bool runWork();
  void driveInBackground();
  /// Requires: the caller is the driver, or it holds mutex_ while no thread drives.
  bool needsBackground() const;
  /// If callbacks are queued and no callback thread is free, starts one, which calls standBy() first. Requires:
  /// callbackMutex_.
  void keepOneFree();
  /// Returns when no callback is queued, or when the other threads have taken none for a while.
  void standBy();
  void runCallbacks();

  Messenger& messenger_;

  // Used by the driver only.
  std::vector<EngineClient*> clients_;
  std::vector<WorkItem> work_;
  Clock::time_point nextTick_ = Clock::time_point::max();
  std::vector<std::function<void()>> running_;

  // Lock order: mutex_ before the messenger's own. Never held while driving.
  std::mutex mutex_;
  std::condition_variable handOver_;    ///< for waiting threads: an operation ended, or no thread drives
  std::condition_variable background_;  ///< for the background thread: no thread waits any more, or the engine ends
  std::vector<std::function<void()>> actions_;
  std::vector<std::function<void()>> heldActions_;  ///< follow actions_; may wait until heldUntil_
  bool isDriven_ = false;
  uint64_t numWaits_ = 0;            ///< calls of wait() so far
  bool isBackgroundAsleep_ = false;  ///< the background thread sleeps until no thread waits
  std::atomic<bool> hasActions_ = false;
  std::atomic<Clock::time_point> heldUntil_ = Clock::time_point::max();  ///< max: there are no held actions
  std::atomic<bool> isStopping_ = false;
  std::atomic<int> numWaiting_ = 0;
  std::atomic<int> numOperations_ = 0;
  std::atomic<Clock::rep> lastUse_;  ///< when a thread last waited or kicked

  std::mutex callbackMutex_;
  std::condition_variable callbackAdded_;
  std::deque<std::function<void()>> callbacks_;
  std::vector<std::thread> callbackThreads_;
  size_t numFreeThreads_ = 1;  ///< callback threads that run no callback
  uint64_t numCallbacksTaken_ = 0;
  std::thread backgroundThread_;
};

}  // namespace agspeed::comm

// SPDX-License-Identifier: Apache-2.0
// Moves everything that is under way in a process: one messenger, and the operations of all groups that use it.
//
// At any time at most one thread drives: it runs queued actions, computes, moves bytes and looks at deadlines. Whoever
// waits for an operation drives until it is done, so that a short operation involves no other thread. When nobody waits
// a background thread drives. A thread that starts an operation drives one round, so that its first bytes leave at
// once. Callbacks run on threads of their own. No thread here runs Python or takes a lock of the caller's.
//
// Threading: as each function says. "On the driver" means: from an action, from Worker::work, from EngineClient::tick
// or from Transfer::finished.
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

/// Has deadlines to look at.
class EngineClient {
 public:
  /// On the driver. Returns: when to be called next.
  virtual Clock::time_point tick(Clock::time_point now) = 0;

 protected:
  ~EngineClient() = default;
};

/// Has something to compute between two looks at the network.
class Worker {
 public:
  /// On the driver, once per Engine::addWork().
  virtual void work(uint64_t token) = 0;

 protected:
  ~Worker() = default;
};

class Engine {
 public:
  /// `messenger` must outlive the engine and is used by it alone.
  explicit Engine(Messenger& messenger);
  /// Requires: no clients are left.
  ~Engine();
  Engine(const Engine&) = delete;

  // --- from any thread ---

  /// Queues an action for the driver; actions run in the order of these calls. kick() makes it soon.
  void enqueue(std::function<void()> action) { enqueueBy({}, std::move(action)); }
  /// The same of an action that may wait until then. It runs earlier where somebody kicks or waits, or before an action
  /// that is queued later.
  void enqueueBy(Clock::time_point time, std::function<void()> action);
  /// Lets a sleeping driver look at new actions, or drives one round without waiting if nobody drives.
  void kick();
  /// Runs `action` on the driver and returns when it ran. Not from the driver itself.
  void runOnDriver(std::function<void()> action);
  /// Whether the caller runs on a thread that the destructor waits for, in a callback for instance.
  bool isOwnThread();
  /// Drives, or lets another waiting thread drive, until `isDone` or `until`. Returns: isDone. Not from the driver.
  bool wait(const std::atomic<bool>& isDone, Clock::time_point until);
  /// Runs `callback` on a thread for callbacks. It may block, also until a later one has run: while callbacks are
  /// queued and no thread comes free for some milliseconds there is one more, if the system has it.
  void callLater(std::function<void()> callback);

  // --- on the driver ---

  Messenger& messenger() { return messenger_; }
  void addClient(EngineClient& client) { clients_.push_back(&client); }
  void removeClient(EngineClient& client) { std::erase(clients_, &client); }
  /// Asks for tick() at the latest then.
  void tickBy(Clock::time_point time) { nextTick_ = std::min(nextTick_, time); }
  /// Asks for worker.work(token); work of a lower `priority` goes first, equal ones in order.
  void addWork(Worker& worker, uint64_t token, int priority);
  void removeWork(const Worker& worker);
  /// Operations that are not done keep the background thread driving.
  void operationStarted(int count = 1) { numOperations_ += count; }
  void operationEnded(int count = 1);
  /// Lets waiting threads look whether they are done.
  void wakeWaiting();

 private:
  struct WorkItem {
    Worker* worker;
    uint64_t token;
    int priority;
  };

  void stop();
  void driveOnce(Clock::time_point until);
  /// Actions that may wait do so no more. Requires: mutex_.
  void releaseActions();
  /// Both return whether there were any.
  bool runActions();
  bool runWork();
  void driveInBackground();
  /// Requires: the lock while nobody drives, or to be the driver.
  bool needsBackground() const;
  /// While callbacks are queued some thread is free to take them, now or after standing by. Requires: callbackMutex_.
  void keepOneFree();
  /// Returns when nothing is queued, or when the other threads have taken nothing for a while.
  void standBy();
  void runCallbacks();

  Messenger& messenger_;

  // Of the driver.
  std::vector<EngineClient*> clients_;
  std::vector<WorkItem> work_;
  Clock::time_point nextTick_ = Clock::time_point::max();
  std::vector<std::function<void()>> running_;

  // Lock order: mutex_ before the messenger's own. Never held while driving.
  std::mutex mutex_;
  std::condition_variable handOver_;    ///< waiting threads: an operation ended or nobody drives
  std::condition_variable background_;  ///< the background thread: nobody waits any more, or the engine ends
  std::vector<std::function<void()>> actions_;
  std::vector<std::function<void()>> heldActions_;  ///< behind those; they may wait until heldUntil_
  bool isDriven_ = false;
  uint64_t numWaits_ = 0;            ///< calls of wait() so far
  bool isBackgroundAsleep_ = false;  ///< until nobody waits
  std::atomic<bool> hasActions_ = false;
  std::atomic<Clock::time_point> heldUntil_ = Clock::time_point::max();  ///< max: there are none
  std::atomic<bool> isStopping_ = false;
  std::atomic<int> numWaiting_ = 0;
  std::atomic<int> numOperations_ = 0;
  std::atomic<Clock::rep> lastUse_;  ///< when a thread last waited or kicked

  std::mutex callbackMutex_;
  std::condition_variable callbackAdded_;
  std::deque<std::function<void()>> callbacks_;
  std::vector<std::thread> callbackThreads_;
  size_t numFreeThreads_ = 1;  ///< of those for callbacks: in none
  uint64_t numCallbacksTaken_ = 0;
  std::thread backgroundThread_;
};

}  // namespace agspeed::comm

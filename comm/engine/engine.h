// SPDX-License-Identifier: Apache-2.0
// Engine: drives one messenger and the operations of all groups of a process that use it.
//
// At most one thread drives at any time. The driver runs queued actions and computations, moves bytes, and checks
// deadlines. A thread that waits for an operation drives until the operation is done, so that a short operation
// involves no other thread. While no thread waits, a background thread drives. A thread that starts an operation drives
// one round, so that the first bytes leave at once. Callbacks run on separate threads. The driver never runs Python and
// never takes a lock of a caller.
//
// Threading: the sections of the class state the threads that may call its functions. "On the driver" means: from an
// action, from Worker::work, from EngineClient::tick or from Transfer::finished.
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

#include "comm/engine/group_state.h"
#include "comm/engine/wire_coder.h"
#include "comm/messaging/messenger.h"

namespace agspeed::comm::engine {

/// An object whose deadlines the engine checks. The engine calls its functions on the driver.
class EngineClient {
 public:
  /// Checks the deadlines. Returns: the latest time for the next call.
  virtual io::Clock::time_point tick(io::Clock::time_point now) = 0;
  /// Describes the operations in flight.
  virtual GroupState state() const = 0;

 protected:
  ~EngineClient() = default;
};

/// An object whose computations the engine runs between two polls of the network.
class Worker {
 public:
  /// Runs the computation that `token` identifies. The engine calls it on the driver, once per Engine::addWork() and
  /// with the same token.
  virtual void work(uint64_t token) = 0;

 protected:
  ~Worker() = default;
};

class Engine {
 public:
  /// Starts the background thread and a callback thread. `messenger` outlives the engine, and only the driver uses it.
  explicit Engine(messaging::Messenger& messenger, WireCoding coding = WireCoding::kOff);
  /// Waits until all queued callbacks have run, and ends the threads. Requires: no clients are left.
  ~Engine();
  Engine(const Engine&) = delete;

  // --- from any thread ---

  /// Queues an action for the driver. Actions run in the order of these calls. Call kick() to run them soon.
  void enqueue(std::function<void()> action) { enqueueBy({}, std::move(action)); }
  /// Like enqueue(), but the action may be delayed until `time`. It runs earlier in two cases: a thread calls kick() or
  /// wait(), or a later action must run earlier, because actions keep their order.
  void enqueueBy(io::Clock::time_point time, std::function<void()> action);
  /// Makes queued actions run soon: wakes the driver, or drives one round without waiting if no thread drives.
  void kick();
  /// Runs `action` on the driver, and waits until it has run. Requires: the caller is not the driver.
  void runOnDriver(std::function<void()> action);
  /// Returns whether the calling thread is a thread of the engine, for example in a callback. The destructor joins
  /// these threads, so it must not run on one of them.
  bool isOwnThread();
  /// Waits until `isDone` is set or `until` has passed. Drives meanwhile, unless another waiting thread does. Returns:
  /// `isDone`. Requires: the caller is not the driver.
  bool wait(const std::atomic<bool>& isDone, io::Clock::time_point until);
  /// Queues `callback` for a callback thread. A callback may block, even until a later callback has run. If no callback
  /// thread becomes free for some milliseconds, an additional thread takes the queued callbacks. If the system allows
  /// no more threads, the next free thread takes them.
  void callLater(std::function<void()> callback);

  // --- on the driver, unless a comment says otherwise ---

  /// Returns the messenger. Any thread may call its rank() and size(), which never change.
  messaging::Messenger& messenger() { return messenger_; }
  WireCoder& coder() { return coder_; }
  void addClient(EngineClient& client) { clients_.push_back(&client); }
  void removeClient(EngineClient& client) { std::erase(clients_, &client); }
  const std::vector<EngineClient*>& clients() const { return clients_; }
  /// Makes the engine call tick() of all clients at `time` or earlier.
  void tickBy(io::Clock::time_point time) { nextTick_ = std::min(nextTick_, time); }
  /// Queues a call of worker.work(token). Calls with a lower `priority` number run first, and calls with equal numbers
  /// in the order in which they were queued.
  void addWork(Worker& worker, uint64_t token, int priority);
  /// Removes all queued calls of the worker.
  void removeWork(const Worker& worker);
  /// Registers `count` operations that start now. While registered operations are not complete, the background thread
  /// drives if no other thread does. From any thread.
  void operationStarted(int count = 1) { numOperations_ += count; }
  /// Unregisters `count` operations that have completed, and wakes the threads that wait.
  void operationEnded(int count = 1);
  /// Makes the threads in wait() check their `isDone` again.
  void wakeWaiting();

 private:
  struct WorkItem {
    Worker* worker;
    uint64_t token;
    int priority;
  };

  void stop();
  /// Drives one round: runs actions, one computation and the messenger. Waits for the network until `until` at most.
  void driveOnce(io::Clock::time_point until);
  /// Makes all delayed actions run in the next round. Requires: the caller holds mutex_.
  void runDelayedSoon();
  /// Runs all actions that are not delayed. Returns: whether there were any.
  bool runActions();
  /// Runs the first queued call of a worker. Returns: whether there was one.
  bool runWork();
  void driveInBackground();
  /// Returns whether the background thread must drive. Requires: the caller is the driver, or it holds mutex_ while no
  /// thread drives.
  bool needsBackground() const;
  /// Starts another callback thread if callbacks are queued and no callback thread is free. The new thread first calls
  /// standBy(). Requires: the caller holds callbackMutex_.
  void keepOneFree();
  /// Waits until a new callback thread should begin to take callbacks: no callback is queued, or the other threads have
  /// taken none for a while.
  void standBy();
  void runCallbacks();

  messaging::Messenger& messenger_;
  WireCoder coder_;  ///< only the driver uses it

  // Only the driver uses these members.
  std::vector<EngineClient*> clients_;
  std::vector<WorkItem> work_;
  io::Clock::time_point nextTick_ = io::Clock::time_point::max();
  std::vector<std::function<void()>> running_;

  // A thread locks mutex_ before the messenger's own lock, and never holds mutex_ while it drives.
  std::mutex mutex_;
  std::condition_variable handOver_;    ///< wakes waiting threads: an operation has completed, or no thread drives
  std::condition_variable background_;  ///< wakes the background thread: no thread waits any more, or the engine stops
  std::vector<std::function<void()>> actions_;
  std::vector<std::function<void()>> delayedActions_;  ///< run after actions_, at delayedUntil_ or earlier
  bool isDriven_ = false;
  uint64_t numWaits_ = 0;            ///< number of calls of wait() so far
  bool isBackgroundAsleep_ = false;  ///< the background thread sleeps until no thread waits
  std::atomic<bool> hasActions_ = false;
  std::atomic<io::Clock::time_point> delayedUntil_ =
      io::Clock::time_point::max();  ///< the latest time for delayedActions_; max: there are none
  std::atomic<bool> isStopping_ = false;
  std::atomic<int> numWaiting_ = 0;
  std::atomic<int> numOperations_ = 0;
  std::atomic<io::Clock::rep> lastUse_;  ///< when a thread last called wait() or kick()

  std::mutex callbackMutex_;
  std::condition_variable callbackAdded_;
  std::deque<std::function<void()>> callbacks_;
  std::vector<std::thread> callbackThreads_;
  size_t numFreeThreads_ = 1;  ///< number of callback threads that run no callback
  uint64_t numCallbacksTaken_ = 0;
  std::thread backgroundThread_;
};

}  // namespace agspeed::comm::engine

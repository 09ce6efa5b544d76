// SPDX-License-Identifier: Apache-2.0
// NamedGroup: collective operations that ranks start in any order, matched by name, fused where they are small.
//
//   named_operation.h   what callers want, and their handle of it
//   request.h           what ranks tell each other
//   message_stream.h    how they do
//   coordinator.h       what is ready at all ranks, and in what order it runs; at the lowest rank
//   pending_table.h     what this rank waits for a response to
//   response_runner.h   packs, runs and unpacks what the coordinator has ordered
//   timeline.h          a trace of all that
//
// Every rank tells the coordinator what it has ready; once all have it, the coordinator tells all to run it. Two
// responses at most move data, four where they fill their buffers: what becomes ready meanwhile is fused, so buffers
// are small while the network is idle and large while it is not. Large tensors run alone, without copies. Nothing here
// has a thread or a cycle of its own: messages and copies are work of the engine's driver. The first operation of a
// burst leaves at once, the others go to the driver together; a burst that comes again leaves with its last.
//
// Failure: a call that is wrong, or that ranks make differently, fails alone, at every rank with the same sentence. A
// lost rank ends all operations, and later ones fail at once; so does a rank that leaves (shutdown()).
//
// Threading: all functions, from any thread but the engine's driver. Ownership: the engine outlives the group;
// destroying a group ends its operations.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "comm/collective/communicator.h"
#include "comm/named/coordinator.h"
#include "comm/named/message_stream.h"
#include "comm/named/pending_table.h"
#include "comm/named/request_codec.h"
#include "comm/named/response_runner.h"
#include "comm/named/stall_inspector.h"
#include "comm/named/start_queue.h"

namespace agspeed::comm {

struct NamedOptions {
  /// Of the communicator that moves the data.
  GroupOptions group = {};
  /// As GroupOptions::id: of the messages between the ranks and their coordinator.
  uint32_t messageId = 0;
  FusionPlan plan = {};         ///< of the coordinator's rank; the others' has no effect
  size_t cacheCapacity = 1024;  ///< names that have an id
  /// After this time an operation that some ranks have not started is logged at the coordinator; zero: never.
  Clock::duration stallWarning = std::chrono::seconds(60);
  /// After this time it ends the group; zero: never.
  Clock::duration stallShutdown = Clock::duration::zero();
};

struct NamedStats : RunnerStats {
  size_t numCachedNames = 0;  ///< at the coordinator's rank, else 0
  uint32_t planVersion = 0;   ///< the same
};

class NamedGroup final : private EngineClient, private MessageListener, private ResponseListener, private Worker {
 public:
  static StatusOr<std::unique_ptr<NamedGroup>> create(Engine& engine, NamedOptions options);
  ~NamedGroup();

  int rank() const { return communicator_->rank(); }
  int size() const { return communicator_->size(); }

  /// Starts an operation. Fails at once where the group is over or the name is under way; later, by the operation,
  /// where ranks differ or one is lost.
  StatusOr<NamedHandle> start(NamedCall call);
  /// An operation of this group that startAll() starts, again and again. Requires: the call has its outputs.
  NamedHandle prepare(NamedCall call) { return std::make_shared<NamedOperation>(engine_, std::move(call)); }
  /// Starts a prepared operation. Requires: it has never been started, or is done, and the caller alone uses it.
  Status start(const NamedHandle& operation);
  /// The same for a caller who holds a lock: returns whether kick() is due, which may take as long as a copy.
  StatusOr<bool> startQuietly(const NamedHandle& operation);
  void kick() {
    engine_.kick();
    queue_.kicked();
  }
  /// start() of several together; what start() would refuse ends at once with why. Returns: why the first of those.
  Status startAll(std::span<const NamedHandle> operations) {
    const StartQueue::Added added = add(operations);
    if (added.isKickDue) kick();
    return added.refused.empty() ? Status() : added.refused[0].reason;
  }
  /// What is fused from now on, and in what order. Of the coordinator's rank; elsewhere it has no effect. Its version
  /// is what stats() tell; no plan changes a result.
  void setPlan(FusionPlan plan);
  /// From now on; null: no more. The coordinator's rank alone writes one.
  void setTimeline(std::shared_ptr<Timeline> timeline);
  NamedStats stats();

  /// This rank leaves: operations of all ranks that are not under way by then fail, and later ones too.
  void shutdown();
  /// Ok, or why the group is over.
  Status health() { return queue_.health(); }

 private:
  NamedGroup(Engine& engine, NamedOptions options, std::unique_ptr<Communicator> communicator);
  bool isCoordinator() const { return coordinator_.has_value(); }

  Clock::time_point tick(Clock::time_point now) override;
  /// Sends what this rank asks for, or at the coordinator responds: to all that came in one round of the driver.
  void work(uint64_t token) override;
  void messageArrived(int rank, std::span<const std::byte> message) override;
  void peerFailed(int rank, const Status& status) override;
  void responseMoved(const Request& first) override;
  void responseEnded(const std::vector<NamedHandle>& operations, const Status& status) override;

  void takeStarted();
  void submit(const NamedHandle& operation);
  void request(const NamedHandle& operation);
  void checkReadiness();
  /// At the coordinator: what `rank` says.
  void hear(int rank, const Note& note);
  void respond();
  void workSoon() {
    if (!std::exchange(hasWork_, true)) engine_.addWork(*this, 0, INT32_MIN);
  }
  /// At every rank: what the coordinator says.
  void follow(const Note& note);
  void follow(const Response& response);
  void run(const Response& response);
  /// To the coordinator. What is said by id goes in the same order.
  void say(const Note& note);
  void flushIds();
  /// Queues those that are not refused for the driver; ends the others.
  StartQueue::Added add(std::span<const NamedHandle> operations);
  /// Their names may be used again, and whoever waits for them hears of it.
  void end(std::span<const NamedHandle> operations, const Status& status);
  /// Ends everything and tells the others.
  void fail(const Status& reason);
  void tellOthers(const Farewell& farewell);
  /// Ends what no response has come for, and whatever is started later.
  void endAll(const Status& reason);
  /// At the coordinator: the loss of ranks that others have long waited for is noticed.
  void watchAwaited(Clock::time_point now);

  Engine& engine_;
  const NamedOptions options_;
  std::unique_ptr<Communicator> communicator_;
  MessageStream stream_;
  std::optional<Coordinator> coordinator_;
  std::unique_ptr<ResponseRunner> runner_;

  StartQueue queue_;
  StallInspector stalls_;

  // Of the driver.
  Status failure_;
  PendingTable pending_{queue_};
  std::vector<NamedHandle> taken_;    ///< from the queue
  std::vector<NamedHandle> unready_;  ///< whose inputs are to come
  Bytes requested_;                   ///< to be sent to the coordinator, and behind it
  std::vector<uint32_t> requestedIds_;
  bool hasWork_ = false;              ///< work() is called soon
  Clock::time_point gatherUntil_{};   ///< what starts until then is looked at together
  Clock::time_point waitingSince_{};  ///< when nothing was pending, or a response came
  Coordinator::Running running_;      ///< responses that move data
  Clock::time_point nextLook_{};      ///< at the coordinator: for what waits too long
  std::shared_ptr<Timeline> timeline_;
};

}  // namespace agspeed::comm

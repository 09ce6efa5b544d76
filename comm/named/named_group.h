// SPDX-License-Identifier: Apache-2.0
// NamedGroup: collective operations that ranks start in any order, matched by name, fused if they are small.
//
//   named_operation.h   a caller's operation, and its handle
//   request.h           the messages between ranks and coordinator
//   message_stream.h    how messages are sent
//   coordinator.h       which operations are ready at all ranks, and in what order they run; at the lowest rank
//   pending_table.h     this rank's operations without a response yet
//   response_runner.h   packs, runs and unpacks the operations of a response
//   timeline.h          a trace of all this
//
// Every rank sends its requests to the coordinator. Once all ranks have requested an operation, the coordinator sends a
// response and all ranks run it. At most two responses move data at a time, or four if their buffers are full.
// Operations that become ready meanwhile are fused, so buffers are small on an idle network and large on a busy one.
// Large tensors run alone, without copies. Nothing here has a thread or a cycle of its own: messages and copies run on
// the engine's driver. The first operation of a burst leaves at once, the others reach the driver together. A repeated
// burst leaves as a whole with its last operation.
//
// Failure: a call that is wrong in itself, or that differs between ranks, fails alone, with the same sentence at every
// rank. A lost rank ends all operations, and later ones fail at once. A rank that leaves (shutdown()) has the same
// effect.
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
  /// Options of the communicator that moves the data.
  GroupOptions group = {};
  /// See GroupOptions::id; for the messages between the ranks and their coordinator.
  uint32_t messageId = 0;
  FusionPlan plan = {};         ///< only the coordinator's rank uses it
  size_t cacheCapacity = 1024;  ///< names that have an id
  /// An operation that some ranks have not started is logged at the coordinator after this time; zero: never.
  Clock::duration stallWarning = std::chrono::seconds(60);
  /// Such an operation ends the group after this time; zero: never.
  Clock::duration stallShutdown = Clock::duration::zero();
};

struct NamedStats : RunnerStats {
  size_t numCachedNames = 0;  ///< at the coordinator's rank, else 0
  uint32_t planVersion = 0;   ///< at the coordinator's rank, else 0
};

class NamedGroup final : private EngineClient, private MessageListener, private ResponseListener, private Worker {
 public:
  static StatusOr<std::unique_ptr<NamedGroup>> create(Engine& engine, NamedOptions options);
  ~NamedGroup();

  int rank() const { return communicator_->rank(); }
  int size() const { return communicator_->size(); }

  /// Starts an operation. Returns an error if the group has ended or the name is already in flight. The operation
  /// itself fails later if ranks differ or a rank is lost.
  StatusOr<NamedHandle> start(NamedCall call);
  /// Makes an operation that startAll() can start many times. Requires: the call has its outputs.
  NamedHandle prepare(NamedCall call) { return std::make_shared<NamedOperation>(engine_, std::move(call)); }
  /// Starts a prepared operation. Requires: it has never been started or is done, and no other thread uses it.
  Status start(const NamedHandle& operation);
  /// See start(), for a caller that holds a lock. Returns: whether the caller has to call kick() afterwards. A kick may
  /// take as long as a copy.
  StatusOr<bool> startQuietly(const NamedHandle& operation);
  void kick() {
    engine_.kick();
    queue_.kicked();
  }
  /// Starts several operations together. Each one that start() would refuse ends at once with that error. Returns: the
  /// first of these errors.
  Status startAll(std::span<const NamedHandle> operations) {
    const StartQueue::Added added = add(operations);
    if (added.isKickDue) kick();
    return added.refused.empty() ? Status() : added.refused[0].reason;
  }
  /// Changes how operations are fused from now on. Only the coordinator's rank uses it. stats() return the version of
  /// the plan in use. No plan changes a result.
  void setPlan(FusionPlan plan);
  /// Traces operations from now on; null: stops. Only the coordinator's rank writes a timeline.
  void setTimeline(std::shared_ptr<Timeline> timeline);
  NamedStats stats();

  /// This rank leaves. Operations of all ranks that have no response by then fail, and later ones too.
  void shutdown();
  /// Ok, or why the group has ended.
  Status health() { return queue_.health(); }

 private:
  NamedGroup(Engine& engine, NamedOptions options, std::unique_ptr<Communicator> communicator);
  bool isCoordinator() const { return coordinator_.has_value(); }

  Clock::time_point tick(Clock::time_point now) override;
  /// Sends this rank's requests, or responds at the coordinator. Handles everything that came in one round of the
  /// driver.
  void work(uint64_t token) override;
  void messageArrived(int rank, std::span<const std::byte> message) override;
  void peerFailed(int rank, const Status& status) override;
  void responseMoved(const Request& first) override;
  void responseEnded(const std::vector<NamedHandle>& operations, const Status& status) override;

  void takeStarted();
  void submit(const NamedHandle& operation);
  void request(const NamedHandle& operation);
  void checkReadiness();
  /// At the coordinator: handles a note of `rank`.
  void hear(int rank, const Note& note);
  void respond();
  void workSoon() {
    if (!std::exchange(hasWork_, true)) engine_.addWork(*this, 0, INT32_MIN);
  }
  /// At every rank: handles a note of the coordinator.
  void follow(const Note& note);
  void follow(const Response& response);
  void run(const Response& response);
  /// Sends a note to the coordinator, after all ids that were queued before it.
  void say(const Note& note);
  void flushIds();
  /// Queues the operations that are not refused for the driver; ends the others.
  StartQueue::Added add(std::span<const NamedHandle> operations);
  /// Completes the operations, which wakes threads that wait for them. Their names may be used again.
  void end(std::span<const NamedHandle> operations, const Status& status);
  /// Ends everything and sends the reason to the other ranks.
  void fail(const Status& reason);
  void tellOthers(const Farewell& farewell);
  /// Ends all operations without a response, and refuses later ones.
  void endAll(const Status& reason);
  /// At the coordinator: watches ranks that others have long waited for.
  void watchAwaited(Clock::time_point now);

  Engine& engine_;
  const NamedOptions options_;
  std::unique_ptr<Communicator> communicator_;
  MessageStream stream_;
  std::optional<Coordinator> coordinator_;
  std::unique_ptr<ResponseRunner> runner_;

  StartQueue queue_;
  StallInspector stalls_;

  // Used by the driver alone.
  Status failure_;
  PendingTable pending_{queue_};
  std::vector<NamedHandle> taken_;    ///< from the queue
  std::vector<NamedHandle> unready_;  ///< their inputs are not there yet
  Bytes requested_;                   ///< encoded notes for the coordinator, sent before requestedIds_
  std::vector<uint32_t> requestedIds_;
  bool hasWork_ = false;              ///< a call of work() is queued
  Clock::time_point gatherUntil_{};   ///< operations that start until then are handled together
  Clock::time_point waitingSince_{};  ///< when the first operation became pending, or a response came last
  Coordinator::Running running_;      ///< responses that move data
  Clock::time_point nextLook_{};      ///< at the coordinator: when to check for stalled operations
  std::shared_ptr<Timeline> timeline_;
};

}  // namespace agspeed::comm

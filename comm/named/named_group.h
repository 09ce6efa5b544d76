// SPDX-License-Identifier: Apache-2.0
// NamedGroup: collective operations that ranks start in any order, matched by name, fused if they are small.
//
//   named_operation.h   a caller's operation, and its handle
//   request.h           the messages between ranks and coordinator
//   message_stream.h    how messages are sent
//   coordinator.h       decides which operations run, and in what order; only the group's lowest rank has one
//   pending_table.h     this rank's operations that have no response yet
//   response_runner.h   packs, runs and unpacks the operations of a response
//   timeline.h          a trace of the operations
//
// Every rank sends its requests to the coordinator. Once all ranks have requested an operation, the coordinator sends a
// response, and all ranks run the operation. At most two responses move data at a time, or four if the waiting
// operations already fill a buffer. Operations that become ready meanwhile wait and are fused. So fusion buffers are
// small on an idle network, and large on a busy one. Large tensors have other limits: they run alone, without copies,
// and several at a time. A group has neither a thread nor a polling cycle: messages and copies run on the engine's
// driver. Operations that start within microseconds of each other are a burst. The request of its first operation is
// sent at once, and the other requests are sent together. If the same burst occurs again, all its requests are sent
// together, after its last operation has started.
//
// Failure: if a call is invalid or differs between ranks, only this operation fails, with the same error at every rank.
// If a rank is lost, all operations fail, and later operations fail at once. If a rank calls shutdown(), the effect is
// the same, except that operations with a response still complete.
//
// Threading: all functions, from any thread but the engine's driver. Ownership: the engine outlives the group; the
// group's destructor fails its unfinished operations.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "comm/collective/communicator.h"
#include "comm/named/coordinator/coordinator.h"
#include "comm/named/message_stream.h"
#include "comm/named/named_group_state.h"
#include "comm/named/pending_table.h"
#include "comm/named/request_codec.h"
#include "comm/named/response_runner.h"
#include "comm/named/stall_inspector.h"
#include "comm/named/start_queue.h"

namespace agspeed::comm::named {

struct NamedOptions {
  /// Options of the communicator that moves the data.
  collective::GroupOptions group = {};
  /// The id for the messages between the ranks and their coordinator; see GroupOptions::id.
  uint32_t messageId = 0;
  coordinator::FusionPlan plan = {};  ///< how operations are fused; only the coordinator uses it
  size_t cacheCapacity = 1024;        ///< the largest number of names that have an id
  /// The coordinator logs an operation if some ranks have not started it after this time; zero: never.
  io::Clock::duration stallWarning = std::chrono::seconds(60);
  /// The group fails if some ranks have not started an operation after this time; zero: never. This option has no
  /// effect if stallWarning is zero.
  io::Clock::duration stallShutdown = io::Clock::duration::zero();
};

struct NamedStats : RunnerStats {
  size_t numCachedNames = 0;  ///< names that have an id; 0 at other ranks than the coordinator's
  uint32_t planVersion = 0;   ///< version of the plan in use; 0 at other ranks than the coordinator's
};

class NamedGroup final : private engine::EngineClient,
                         private MessageListener,
                         private ResponseListener,
                         private engine::Worker {
 public:
  /// Makes the group. All members call it. If `options` names no members, all ranks are members.
  static StatusOr<std::unique_ptr<NamedGroup>> create(engine::Engine& engine, NamedOptions options);
  ~NamedGroup();

  int rank() const { return communicator_->rank(); }
  int size() const { return communicator_->size(); }

  /// Starts an operation. Returns an error if the group has ended, or if the name is already in flight. If the ranks'
  /// calls differ or a rank is lost, the operation fails later.
  StatusOr<NamedHandle> start(NamedCall call);
  /// Makes an operation that startAll() can start many times. Requires: `call.outputs` is set, and `call.allocate` is
  /// not.
  NamedHandle prepare(NamedCall call) { return std::make_shared<NamedOperation>(engine_, std::move(call)); }
  /// Starts a prepared operation. Requires: the operation has never been started or is done, and no other thread uses
  /// it.
  Status start(const NamedHandle& operation);
  /// Starts a prepared operation like start(), but does not wake the driver, so a caller may hold a lock. Returns true
  /// if the caller must call kick() after it has released the lock. kick() may take as long as copying a tensor.
  StatusOr<bool> startQuietly(const NamedHandle& operation);
  /// Wakes the driver, which then takes the started operations.
  void kick() {
    engine_.kick();
    queue_.kicked();
  }
  /// Starts several operations together. If start() would refuse an operation, the operation completes at once with the
  /// error of start(). Returns the first such error, or ok.
  Status startAll(std::span<const NamedHandle> operations) {
    const StartQueue::Added added = add(operations);
    if (added.isKickDue) kick();
    return added.refused.empty() ? Status() : added.refused[0].reason;
  }
  /// Returns ok if start() would accept an operation of this name now, else the error.
  Status admits(const std::string& name) { return queue_.admits(name, rank()); }
  /// Sets the plan for fusing operations from now on. The call has an effect at the coordinator's rank only. stats()
  /// returns the version of the plan in use. A plan never changes a result.
  void setPlan(coordinator::FusionPlan plan);
  /// Writes a trace of operations to the timeline from now on; null: stops writing. The call has an effect at the
  /// coordinator's rank only.
  void setTimeline(std::shared_ptr<Timeline> timeline);
  NamedStats stats();

  /// Makes this rank leave the group. Operations without a response fail at all ranks, and so do later operations.
  void shutdown();
  /// Returns ok, or the reason for which the group has ended.
  Status health() { return queue_.health(); }

 private:
  NamedGroup(engine::Engine& engine, NamedOptions options, std::unique_ptr<collective::Communicator> group);
  bool isCoordinator() const { return coordinator_.has_value(); }

  io::Clock::time_point tick(io::Clock::time_point now) override;
  engine::GroupState state() const override {
    return stateOf({options_.group.name, options_.group.members, failure_ ? failure_->message() : "", unready_,
                    pending_.operations(), waitingSince_, isCoordinator() ? &*coordinator_ : nullptr});
  }
  /// Sends this rank's requests to the coordinator, or sends responses at the coordinator. One call handles all
  /// requests of one round of the driver.
  void work(uint64_t token) override;
  void messageArrived(int rank, std::span<const std::byte> message) override;
  void peerFailed(int rank, const Status& status) override;
  void responseMoved(const Request& first) override;
  void responseEnded(const std::vector<NamedHandle>& operations, const Status& status) override;

  /// Takes the started operations from the queue and submits them.
  void takeStarted();
  /// Requests the operation, as soon as its inputs are ready.
  void submit(const NamedHandle& operation);
  /// Sends the operation's request, or its id, to the coordinator.
  void request(const NamedHandle& operation);
  /// Requests the operations in unready_ whose inputs have become ready.
  void checkReadiness();
  /// At the coordinator: handles a note of `rank`: a request, a list of ids, a confirmation of evicted ids, or a
  /// farewell.
  void handleRequest(int rank, const Note& note);
  /// At the coordinator: makes the responses that are due, sends them to the other ranks, and handles them at this
  /// rank.
  void respond();
  /// Schedules a call of work().
  void workSoon() {
    if (!std::exchange(hasWork_, true)) engine_.addWork(*this, 0, INT32_MIN);
  }
  /// At every rank: handles a note of the coordinator, which is a response or a farewell.
  void handleResponse(const Note& note);
  void handleResponse(const Response& response);
  /// Runs the operations of a response without an error.
  void run(const Response& response);
  /// Sends a note to the coordinator, after all ids that were queued before it.
  void sendToCoordinator(const Note& note);
  /// Sends the queued ids to the coordinator as one note.
  void flushIds();
  /// Queues operations for the driver. Completes refused operations with the reason.
  StartQueue::Added add(std::span<const NamedHandle> operations);
  /// Completes the operations with `status`, and wakes threads that wait for them. Afterwards their names may be used
  /// again.
  void end(std::span<const NamedHandle> operations, const Status& status);
  /// Fails the group: fails all operations, and sends the reason to the other ranks.
  void fail(const Status& reason);
  /// Sends the farewell to the coordinator. At the coordinator: sends it to all other ranks.
  void sendFarewell(const Farewell& farewell);
  /// Fails all operations without a response, and makes the queue refuse later ones.
  void endAll(const Status& reason);
  /// At the coordinator: checks that the ranks are alive for which other ranks have waited for at least kWatchAfter.
  void watchAwaited(io::Clock::time_point now);

  engine::Engine& engine_;
  const NamedOptions options_;
  std::unique_ptr<collective::Communicator> communicator_;
  MessageStream stream_;
  std::optional<coordinator::Coordinator> coordinator_;
  std::unique_ptr<ResponseRunner> runner_;

  StartQueue queue_;
  StallInspector stalls_;

  // Only the driver uses these members.
  std::optional<Status> failure_;
  PendingTable pending_{queue_};
  std::vector<NamedHandle> taken_;    ///< operations that are being taken from the queue
  std::vector<NamedHandle> unready_;  ///< operations whose inputs are not ready yet
  Bytes requested_;                   ///< encoded notes for the coordinator, sent before requestedIds_
  std::vector<uint32_t> requestedIds_;
  bool hasWork_ = false;                    ///< a call of work() is queued
  io::Clock::time_point gatherUntil_{};     ///< operations that start before this time are handled together
  io::Clock::time_point waitingSince_{};    ///< when the first operation became pending, or when the last response came
  coordinator::RunningResponses running_;   ///< the responses that move data
  io::Clock::time_point nextStallCheck_{};  ///< at the coordinator: when to check for stalled operations
  std::shared_ptr<Timeline> timeline_;
};

}  // namespace agspeed::comm::named

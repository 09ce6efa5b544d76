// SPDX-License-Identifier: Apache-2.0
// Group: the part of a communicator that runs on the driver. It combines the parts of a group, and decides when the
// group fails:
//
//   collective_queue.h   which collectives wait, which run, and which may start next
//   call_history.h       whether the ranks make the same calls
//   plan_fitter.h        how a call runs on the ranks' hosts
//   execution_pool.h     the executions that run calls
//   point_to_point.h     sends and receives between two ranks
//   control_mailbox.h    control messages between ranks, beside their data
//
// Agreement: the names of a collective's messages contain 16 bits of the call history's chain. So messages of ranks
// whose calls differ match with a probability of 2^-16 only. If an operation waits for long, its rank sends the last
// calls to the ranks that it waits for. A rank that finds a difference fails the group with an error that names the
// call.
//
// Failure: if one operation fails, the group fails, because the buffers of other operations may hold partial results.
// All operations in flight fail, and later operations fail at once with the same reason.
//
// Threading: all functions and the constructor run on the engine's driver.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/collective/call_history.h"
#include "comm/collective/collective_queue.h"
#include "comm/collective/control_mailbox.h"
#include "comm/collective/plan_fitter.h"
#include "comm/collective/point_to_point.h"
#include "comm/engine/execution_pool.h"

namespace agspeed::comm::collective {

/// The arguments of a group.
struct GroupOptions {
  /// The number of the group. It is equal at all ranks, different from the id of every other group that uses or has
  /// used the messenger, and below 2^31.
  uint32_t id = 0;
  std::string name = "world";                              ///< appears in logs and errors
  std::vector<int> members = {};                           ///< the messenger's number of each rank; empty: all ranks
  plan::Plan plan = {};                                    ///< must be equal at all ranks
  io::Clock::duration timeout = std::chrono::minutes(30);  ///< limit of operations without their own timeout
  size_t maxInFlightBytes = size_t{64} << 20;              ///< limit of the running operations; see CollectiveQueue
};

class Group final : private engine::EngineClient,
                    private engine::ExecutionListener,
                    private ControlListener,
                    private TransferListener {
 public:
  /// Makes this rank's part of a group. `rank`: the index of this rank in options.members. Requires: the messenger's
  /// rank is among options.members.
  Group(engine::Engine& engine, GroupOptions options, int rank);

  void open();
  /// Fails all unfinished operations, and removes the group from the engine and the messenger.
  void close();

  /// Takes an operation that a caller has started, and starts it as soon as it may start.
  void submit(std::shared_ptr<CollectiveOperation> operation);
  void submit(std::shared_ptr<MessageOperation> operation);
  /// Sets the plan of operations that are submitted from now on. A plan may state which algorithm an operation uses,
  /// and which part of a buffer each rank reduces. If a plan does not state them, the group chooses them from the hosts
  /// of its ranks and the measured network.
  void setPlan(plan::Plan plan) { fitter_.setPlan(std::move(plan)); }
  /// Fails the group: fails all operations, and sends the reason to the other ranks.
  void fail(const Status& reason);
  /// Returns Ok, or the reason why the group is unusable.
  Status health() const { return failure_.value_or(Status()); }

 private:
  using CollectiveHandle = CollectiveQueue::Handle;

  io::Clock::time_point tick(io::Clock::time_point now) override;
  engine::GroupState state() const override;
  void executionEnded(engine::Execution& execution) override;
  void executionFailed(engine::Execution& execution, int rank, const Status& status) override;
  void controlMessageArrived(int rank, const ControlMessage& message) override;
  void transferFailed(int rank, const Status& status) override;

  /// A group uses two communicator numbers in the ids of its messages. The first is for the messages of collectives.
  /// The second is for point-to-point messages and for control messages.
  static uint32_t collectiveCommunicator(const GroupOptions& options) { return 2 * options.id; }
  static uint32_t messageCommunicator(const GroupOptions& options) { return 2 * options.id + 1; }
  int numRanks() const { return static_cast<int>(options_.members.size()); }

  /// Gives the operation the next sequence, the plan's choice and a signature, and queues it. `call`: the call that the
  /// signature describes. For an exchange of host statistics, it is the call after the exchange.
  void assignSequence(CollectiveHandle operation, const engine::CollectiveCall& call);
  /// Queues an exchange of host statistics, which runs before `call`.
  void exchangeHostStats(const engine::CollectiveCall& call);
  /// Sets this rank's statistics for an exchange that starts now.
  void contributeHostStats();
  /// Applies the results of the exchange of host statistics with this sequence, which is complete, to later operations.
  void applyHostStats(uint64_t sequence);
  /// Starts all waiting collectives that may start now.
  void startWaiting();
  void start(CollectiveOperation& operation);
  /// Releases the execution and the memory that the operation needs only while it runs. Callers may keep its handle for
  /// long.
  void release(CollectiveOperation& operation);

  void sendCallHistory(CollectiveOperation& operation);
  void sendFailure(const Status& reason, int lostRank);
  /// Fails all operations of this rank, and makes `reason` the group's failure if it has none yet.
  void endAll(const Status& reason);
  void end(engine::Operation& operation, const Status& status);
  /// Fails the group if a deadline has passed. Otherwise returns the next deadline.
  io::Clock::time_point checkDeadlines(io::Clock::time_point now);
  std::string progressOf(const CollectiveOperation& operation) const;
  std::string progressOf(const MessageOperation& operation) const;
  engine::OperationState stateOf(const CollectiveOperation& operation) const;
  engine::OperationState stateOf(const MessageOperation& operation) const;
  /// Converts ranks of the group to ranks of the world.
  std::vector<int> inWorld(const std::vector<int>& ranks) const;
  /// Returns the error of one operation: the reason, then the operation, its age and its progress.
  Status explain(const std::string& operation, io::Clock::time_point started, const Status& reason,
                 const std::string& progress) const;

  engine::Engine& engine_;
  const GroupOptions options_;
  const int rank_;
  ControlMailbox mailbox_;
  CallHistory history_;
  PlanFitter fitter_;
  engine::ExecutionPool executions_;
  CollectiveQueue queue_;
  PointToPoint messages_;
  bool isStarting_ = false;        ///< startWaiting() is running
  std::optional<Status> failure_;  ///< why the group is unusable
};

}  // namespace agspeed::comm::collective

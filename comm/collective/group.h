// SPDX-License-Identifier: Apache-2.0
// The driver's side of a communicator: combines the parts of a group, and decides when the group fails.
//
//   collective_queue.h   which collectives wait, which run, and which may start next
//   call_history.h       whether the ranks make the same calls
//   plan_fitter.h        how a call runs on the ranks' hosts
//   execution_pool.h     the executions that run calls
//   point_to_point.h     sends and receives between two ranks
//   control_mailbox.h    control messages between ranks, beside their data
//
// Agreement: bits of the call history's chain are part of every message's name, so messages of ranks whose calls differ
// never match. An operation that waits for long sends its last calls to the ranks it waits for. A rank that finds a
// difference fails the group with an error that names the call.
//
// Failure: if one operation fails, the group fails, because the bytes of others may be half reduced. All operations
// then end, and later ones fail at once with the reason.
//
// Threading: on the engine's driver, including the constructor.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/collective/call_history.h"
#include "comm/collective/collective_queue.h"
#include "comm/collective/control_mailbox.h"
#include "comm/collective/plan_fitter.h"
#include "comm/collective/point_to_point.h"
#include "comm/engine/execution_pool.h"

namespace agspeed::comm {

/// The arguments of a group.
struct GroupOptions {
  /// The same at all ranks. No other group that uses or has used the messenger may have it. Below 2^31.
  uint32_t id = 0;
  std::string name = "world";                          ///< appears in logs and errors
  std::vector<int> members = {};                       ///< the messenger's number of each rank; empty: all ranks
  Plan plan = {};                                      ///< equal at all ranks
  Clock::duration timeout = std::chrono::minutes(30);  ///< of operations without a timeout of their own
  size_t maxInFlightBytes = size_t{64} << 20;          ///< operations wait for older ones beyond this
};

class Group final : private EngineClient, private ExecutionListener, private ControlListener, private TransferListener {
 public:
  /// Requires: the messenger's rank is among options.members.
  Group(Engine& engine, GroupOptions options, int rank);

  void open();
  /// Ends everything. Afterwards nothing refers to the group.
  void close();

  void submit(std::shared_ptr<CollectiveOperation> operation);
  void submit(std::shared_ptr<MessageOperation> operation);
  /// Applies to operations submitted from now on. Rules and shares that the plan states are kept. The group fits
  /// everything else to its ranks' hosts and the network between them.
  void setPlan(Plan plan) { fitter_.setPlan(std::move(plan)); }
  /// Ends all operations and sends the reason to the other ranks.
  void fail(const Status& reason);
  /// Ok, or why the group is no longer usable.
  const Status& failure() const { return failure_; }

 private:
  using CollectiveHandle = CollectiveQueue::Handle;

  Clock::time_point tick(Clock::time_point now) override;
  void executionEnded(Execution& execution) override;
  void executionFailed(Execution& execution, int rank, const Status& status) override;
  void controlMessageArrived(int rank, const ControlMessage& message) override;
  void transferFailed(int rank, const Status& status) override;

  /// Communicator numbers in message names: one for parts of collectives, one for messages between two ranks and
  /// control messages.
  static uint32_t collectiveCommunicator(const GroupOptions& options) { return 2 * options.id; }
  static uint32_t messageCommunicator(const GroupOptions& options) { return 2 * options.id + 1; }
  int numRanks() const { return static_cast<int>(options_.members.size()); }

  /// Gives the operation its sequence number and signature. `call` is the call that the signature describes.
  void assignSequence(CollectiveHandle operation, const CollectiveCall& call);
  /// Queues an exchange of host statistics before the collective of this call.
  void exchangeHostStats(const CollectiveCall& call);
  void contributeHostStats();
  /// The exchange of this sequence has ended: applies its results to the operations after it.
  void applyHostStats(uint64_t sequence);
  void startWaiting();
  void start(CollectiveOperation& operation);
  /// Gives back resources that are needed only while it runs, because callers may keep its handle for long.
  void release(CollectiveOperation& operation);

  void sendCallHistory(CollectiveOperation& operation);
  void tellOthers(const Status& reason, int lostRank);
  /// Ends all operations with this reason.
  void endAll(const Status& reason);
  void end(Operation& operation, const Status& status);
  /// Fails the group if a deadline has passed. Returns: the next deadline otherwise.
  Clock::time_point checkDeadlines(Clock::time_point now);
  std::string progressOf(const CollectiveOperation& operation) const;
  std::string progressOf(const MessageOperation& operation) const;
  Status explain(const std::string& operation, Clock::time_point started, const Status& reason,
                 const std::string& progress) const;

  Engine& engine_;
  const GroupOptions options_;
  const int rank_;
  ControlMailbox mailbox_;
  CallHistory history_;
  PlanFitter fitter_;
  ExecutionPool executions_;
  CollectiveQueue queue_;
  PointToPoint messages_;
  bool isStarting_ = false;
  Status failure_;
};

}  // namespace agspeed::comm

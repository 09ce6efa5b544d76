// SPDX-License-Identifier: Apache-2.0
// The driver's side of a communicator: puts a group's parts together, and decides what ends them.
//
//   collective_queue.h   which collectives wait, which run, and which may start next
//   call_history.h       whether the ranks make the same calls
//   plan_fitter.h        how a call runs on the ranks' hosts
//   execution_pool.h     what runs it
//   point_to_point.h     sends and receives between two ranks
//   control_mailbox.h    what ranks tell each other beside their data
//
// Agreement: bits of the history's chain are part of every message's name. Messages of ranks whose calls differ
// therefore never meet; an operation that waits for long sends its last calls to the ranks it waits for, and whoever
// finds a difference tells everybody which call it was.
//
// Failure: whatever ends one operation ends the group: bytes of others may be half reduced. All operations then end,
// and later ones fail at once with the reason.
//
// Threading: on the engine's driver, constructor included.
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

/// What a group is made with.
struct GroupOptions {
  /// The same at all ranks, and of no other group that uses the messenger or has used it. Below 2^31.
  uint32_t id = 0;
  std::string name = "world";                          ///< for messages to people
  std::vector<int> members = {};                       ///< the messenger's rank of each rank; empty: all of them
  Plan plan = {};                                      ///< equal at all ranks
  Clock::duration timeout = std::chrono::minutes(30);  ///< of operations that state none
  size_t maxInFlightBytes = size_t{64} << 20;          ///< bytes in flight from which on operations wait for older ones
};

class Group final : private EngineClient, private ExecutionListener, private ControlListener, private TransferListener {
 public:
  /// Requires: the messenger's rank is among options.members.
  Group(Engine& engine, GroupOptions options, int rank);

  void open();
  /// Ends everything; nothing refers to the group afterwards.
  void close();

  void submit(std::shared_ptr<CollectiveOperation> operation);
  void submit(std::shared_ptr<MessageOperation> operation);
  /// Holds for operations submitted from now on. What a plan states, rules and shares, is left as it is; else the group
  /// fits operations to the ranks' hosts and the network between them.
  void setPlan(Plan plan) { fitter_.setPlan(std::move(plan)); }
  /// Ends all operations and tells the other ranks.
  void fail(const Status& reason);
  /// Ok, or why the group is not usable.
  const Status& failure() const { return failure_; }

 private:
  using CollectiveHandle = CollectiveQueue::Handle;

  Clock::time_point tick(Clock::time_point now) override;
  void executionEnded(Execution& execution) override;
  void executionFailed(Execution& execution, int rank, const Status& status) override;
  void controlMessageArrived(int rank, const ControlMessage& message) override;
  void transferFailed(int rank, const Status& status) override;

  /// What messages are named by: parts of collectives; those between two ranks, and control messages.
  static uint32_t collectiveCommunicator(const GroupOptions& options) { return 2 * options.id; }
  static uint32_t messageCommunicator(const GroupOptions& options) { return 2 * options.id + 1; }
  int numRanks() const { return static_cast<int>(options_.members.size()); }

  /// Gives the operation its sequence among those of all ranks, where `call` stands for it.
  void assignSequence(CollectiveHandle operation, const CollectiveCall& call);
  /// Before a collective of this call.
  void exchangeHostStats(const CollectiveCall& call);
  void contributeHostStats();
  /// The exchange of this sequence has ended: what it says holds for the operations after it.
  void applyHostStats(uint64_t sequence);
  void startWaiting();
  void start(CollectiveOperation& operation);
  /// Gives back what the operation only needs while it runs: handles of it may be kept for long.
  void release(CollectiveOperation& operation);

  void sendCallHistory(CollectiveOperation& operation);
  void tellOthers(const Status& reason, int lostRank);
  /// Ends everything.
  void endAll(const Status& reason);
  void end(Operation& operation, const Status& status);
  /// Fails the group if a deadline has passed. Returns: the next one otherwise.
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

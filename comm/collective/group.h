// SPDX-License-Identifier: Apache-2.0
// The driver's side of a communicator: operations that are under way, in which order they start, what ends them, and
// what the ranks tell each other about it.
//
// Order: operations start in the order of their priority while their bytes in flight stay below the group's credit; the
// oldest one always may. All ranks submit in the same order, so the oldest is the same everywhere and nothing can wait
// in a circle. One whose input is still to come (Readiness) keeps its place and lets others pass. A barrier starts as
// the oldest, so it ends after all that was called before it, and lets others pass meanwhile; messages between two
// ranks have no place in this order.
//
// Agreement: every rank hashes its calls into a chain, and bits of the chain are part of every message's name. Messages
// of ranks whose calls differ therefore never meet; an operation that waits for long sends its last calls to the ranks
// it waits for, and whoever finds a difference tells everybody which call it was.
//
// Failure: whatever ends one operation ends the group: bytes of others may be half reduced. All operations then end,
// and later ones fail at once with the reason.
//
// Threading: on the engine's driver, constructor included.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "comm/collective/control_mailbox.h"
#include "comm/collective/execution.h"
#include "comm/collective/host_stats.h"
#include "comm/collective/operation.h"
#include "comm/plan/cost_model.h"
#include "comm/plan/plan.h"

namespace agspeed::comm {

class Group;

/// A collective under way.
struct CollectiveOperation final : Operation {
  using Operation::Operation;

  CollectiveCall call;
  int priority = 0;
  Clock::time_point started, deadline;
  Readiness readiness;  ///< null once the input is there
  /// Of a premultiplied sum, where the output cannot hold it, while running.
  std::unique_ptr<std::byte[]> scaledInput;
  // Set by the group.
  uint64_t sequence = 0;
  uint64_t chain = 0;
  CallSignature signature;
  Choice choice;  ///< equal at all ranks when it is made
  // What is made of it for the hosts as they are known (Group::fitToHosts).
  const Algorithm* algorithm = nullptr;
  int localGroupSize = 1;  ///< as in ScheduleRequest; 1 where the algorithm does not ask for it
  std::vector<uint32_t> shares;
  size_t segmentBytes = 0;
  Execution* execution = nullptr;  ///< while running
  bool hasAsked = false;           ///< peers were told that it waits
};

/// In place of a rank: whichever offers a message first.
constexpr int kAnyRank = INT32_MIN;

/// A send or receive under way.
struct MessageOperation final : Operation, Transfer {
  using Operation::Operation;
  void finished(const Status& status) override;
  std::string describe() const override;
  int sourceRank() const override { return isSend ? -1 : rank; }

  Group* group = nullptr;
  int rank = -1;  ///< the peer's in the group, or kAnyRank until it is known
  uint32_t tag = 0;
  bool isSend = false;
  bool isPending = false;
  Clock::time_point started, deadline;
  Readiness readiness;  ///< null once the bytes to be sent are there
};

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

class Group final : private EngineClient, private ExecutionListener, private ControlListener, private Worker {
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
  void setPlan(Plan plan);
  /// Ends all operations and tells the other ranks.
  void fail(const Status& reason);
  /// Ok, or why the group is not usable.
  const Status& failure() const { return failure_; }

 private:
  friend struct MessageOperation;
  using CollectiveHandle = std::shared_ptr<CollectiveOperation>;

  /// Executions of one schedule, running and idle.
  struct Pool {
    explicit Pool(Schedule schedule) : prepared(std::move(schedule)) {}

    PreparedSchedule prepared;
    std::vector<std::unique_ptr<Execution>> all;
    std::vector<Execution*> idle;
  };

  Clock::time_point tick(Clock::time_point now) override;
  void executionEnded(Execution& execution) override;
  void executionFailed(Execution& execution, int rank, const Status& status) override;
  void controlMessageArrived(int rank, const ControlMessage& message) override;
  void work(uint64_t token) override;

  /// What messages are named by: parts of collectives; those between two ranks, and notices.
  uint32_t collectiveCommunicator() const { return 2 * options_.id; }
  uint32_t messageCommunicator() const { return 2 * options_.id + 1; }

  /// Gives the operation its place among those of all ranks, where `call` stands for it.
  void enter(CollectiveHandle operation, const CollectiveCall& call);
  /// Before a collective of this call.
  void compareHosts(const CollectiveCall& call);
  bool isComparison(const CollectiveHandle& operation) const {
    return !comparisons_.empty() && comparisons_.front() == operation;
  }
  /// The round trip to the farthest member; 0 where one is not known.
  double farthestSeconds() const;
  /// The comparison has ended: what it says holds for the operations after it.
  void learn();
  void fitToNetwork();
  /// Says how the operation runs on the hosts as far as they are known. Not part of its signature: other ranks may
  /// learn of their hosts before or after they give the operation its place.
  void fitToHosts(CollectiveOperation& operation) const;
  /// Gives the message its place among those of its tag.
  void enter(MessageOperation& operation);
  /// Hands it to the messenger as soon as its bytes are there.
  void startMessage(MessageOperation& operation);
  /// Starts a receive from any rank if a message for it is offered.
  void findSource(MessageOperation& operation);
  /// Whether the input is there; asks for a tick() where it is not.
  bool isReady(Readiness& readiness);
  void startWaiting();
  CollectiveHandle takeNext();
  void start(const CollectiveHandle& operation);
  Pool& poolOf(const CollectiveOperation& operation);
  size_t bytesInFlight(const CollectiveOperation& operation) const;
  /// Gives back what the operation only needs while it runs: handles of it may be kept for long.
  void release(CollectiveOperation& operation);

  void sendCallHistory(CollectiveOperation& operation);
  void remember(const CollectiveOperation& operation);
  /// The sentence about the first call in which a peer differs, if there is one.
  std::optional<std::string> findDifference(int rank, const ControlMessage& message) const;
  /// A transfer with `rank` failed.
  void failTransfer(int rank, const Status& status);
  void tellOthers(const Status& reason, int lostRank);
  /// Ends everything.
  void endAll(const Status& reason);
  void endMessage(MessageOperation& operation, const Status& status);
  std::string describe(const CollectiveOperation& operation) const;
  std::string describe(const MessageOperation& operation) const;
  std::string progressOf(const CollectiveOperation& operation) const;
  std::string progressOf(const MessageOperation& operation) const {
    return operation.readiness ? " before its bytes were there" : "";
  }
  Status explain(const std::string& operation, Clock::time_point started, const Status& reason,
                 const std::string& progress) const;

  static constexpr size_t kHistory = 64;

  Engine& engine_;
  GroupOptions options_;
  const int rank_;
  ControlMailbox mailbox_;
  std::map<std::tuple<const Algorithm*, int, int>, Pool> pools_;  ///< by algorithm, root and localGroupSize
  std::deque<CollectiveHandle> waiting_;                          ///< submitted, in order
  std::vector<CollectiveHandle> running_;                         ///< in order of their start
  HostStatsExchange hosts_;
  int localGroupSize_ = 1;        ///< as in ScheduleRequest
  std::vector<uint32_t> shares_;  ///< of unequal hosts; empty where there are blocks
  std::optional<NetworkMeasurement> network_;
  Plan fitted_;  ///< its rules fit the network as it was measured; none where there are blocks or shares
  std::optional<std::vector<CountedAlgorithm>> counted_;  ///< once it was
  /// Of hosts, those that have not ended; operations after the first of them wait for it.
  std::deque<CollectiveHandle> comparisons_;
  std::vector<std::shared_ptr<MessageOperation>> messages_;
  int firstSource_ = 0;  ///< where the next search for a source begins, so that none is left out
  std::map<std::pair<int, uint32_t>, uint64_t> numSent_, numReceived_;  ///< messages per rank and tag
  size_t bytesInFlight_ = 0;
  uint64_t sequence_ = 0, chain_ = 0;
  std::array<HistoryEntry, kHistory> history_ = {};  ///< of sequence i at i modulo its size
  std::map<int, ControlMessage> questions_;          ///< the last one of each rank that runs ahead
  bool isStarting_ = false;
  Status failure_;
  Status messageFailure_;  ///< to be looked at outside the messenger
  int messageFailedRank_ = -1;
};

}  // namespace agspeed::comm

// SPDX-License-Identifier: Apache-2.0
// PointToPoint: the sends and receives between two ranks of a group. They have no place in the order of collectives.
//
// Messages of one tag between two ranks are counted at both ends, so the n-th send meets the n-th receive. A receive
// from any rank looks for a message every now and then, since none announces itself to a waiting thread; it takes its
// place among the receives of the rank that it finds one from.
//
// Threading: on the engine's driver. The listener is not called from within the messenger.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/engine/operation.h"

namespace agspeed::comm {

/// In place of a rank: whichever offers a message first.
constexpr int kAnyRank = INT32_MIN;

class PointToPoint;

/// A send or receive under way.
struct MessageOperation final : Operation, Transfer {
  using Operation::Operation;
  void finished(const Status& status) override;
  std::string describe() const override;
  int sourceRank() const override { return isSend ? -1 : rank; }

  PointToPoint* owner = nullptr;
  int rank = -1;  ///< the peer's in the group, or kAnyRank until it is known
  uint32_t tag = 0;
  bool isSend = false;
  bool isPending = false;  ///< at the messenger
  Clock::time_point started, deadline;
  Readiness readiness;  ///< null once the bytes to be sent are there
};

/// "send to rank 1 (12 bytes, tag 3)".
std::string toString(const MessageOperation& operation);

class TransferListener {
 public:
  /// A transfer with `rank` of the group failed; its operation is still there. Told of the first failure only.
  virtual void transferFailed(int rank, const Status& status) = 0;

 protected:
  ~TransferListener() = default;
};

class PointToPoint final : private Worker {
 public:
  using Handle = std::shared_ptr<MessageOperation>;

  /// `members` are the messenger's ranks of the group, `rank` the own place among them; messages carry `communicator`.
  PointToPoint(Engine& engine, TransferListener& listener, std::span<const int> members, int rank,
               uint32_t communicator, std::string group);

  /// Keeps the operation until it has succeeded or takeAll().
  void add(Handle operation);
  /// Starts one that was added, as soon as its bytes are there or a source is found. Fails where its Readiness does.
  Status start(MessageOperation& operation);
  /// Starts what can be by now; to be called by the engine's ticks. Fails where a Readiness does.
  Status startWaiting();
  /// Those that have not ended, in the order of their calls.
  const std::vector<Handle>& underWay() const { return operations_; }
  /// Empties this: the messenger is done with them for `reason`; the caller completes them.
  std::vector<Handle> takeAll(const Status& reason);
  /// The listener is not called any more. Requires: none is under way.
  void close() { engine_.removeWork(*this); }

 private:
  friend struct MessageOperation;

  /// Gives the message its sequence among those of its rank and tag.
  void assignSequence(MessageOperation& operation);
  Status findSource(MessageOperation& operation);
  /// Hands it to the messenger if its bytes are there.
  Status transfer(MessageOperation& operation);
  void transferFinished(MessageOperation& operation, const Status& status);
  void work(uint64_t token) override;

  Engine& engine_;
  TransferListener& listener_;
  const std::span<const int> members_;
  const int rank_;
  const uint32_t communicator_;
  const std::string group_;
  std::vector<Handle> operations_;
  int firstSource_ = 0;  ///< where the next search for a source begins, so that none is left out
  std::map<std::pair<int, uint32_t>, uint64_t> numSent_, numReceived_;  ///< messages per rank and tag
  Status failure_;                                                      ///< to be looked at outside the messenger
  int failedRank_ = -1;
};

}  // namespace agspeed::comm

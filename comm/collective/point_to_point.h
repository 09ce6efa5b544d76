// SPDX-License-Identifier: Apache-2.0
// PointToPoint: sends and receives between two ranks of a group. They are independent of the order of collectives.
//
// Both ends count the messages of one tag, so the n-th send meets the n-th receive. A receive from any rank probes
// periodically, because no message wakes a waiting thread without a posted receive. When it finds a message, it takes
// the next number among the receives from that rank.
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

/// A receive from the first rank that offers a message.
constexpr int kAnyRank = INT32_MIN;

class PointToPoint;

/// A send or receive in flight.
struct MessageOperation final : Operation, Transfer {
  using Operation::Operation;
  void finished(const Status& status) override;
  std::string describe() const override;
  int sourceRank() const override { return isSend ? -1 : rank; }

  PointToPoint* owner = nullptr;
  int rank = -1;  ///< the peer's rank in the group, or kAnyRank until it is known
  uint32_t tag = 0;
  bool isSend = false;
  bool isPending = false;  ///< posted to the messenger
  Clock::time_point started, deadline;
  Readiness readiness;  ///< null once the bytes to be sent are there
};

/// "send to rank 1 (12 bytes, tag 3)".
std::string toString(const MessageOperation& operation);

class TransferListener {
 public:
  /// A transfer with `rank` of the group has failed; its operation still exists. Only the first failure is reported.
  virtual void transferFailed(int rank, const Status& status) = 0;

 protected:
  ~TransferListener() = default;
};

class PointToPoint final : private Worker {
 public:
  using Handle = std::shared_ptr<MessageOperation>;

  /// `members` are the group's ranks as the messenger numbers them, `rank` this rank's index among them. Messages carry
  /// `communicator`.
  PointToPoint(Engine& engine, TransferListener& listener, std::span<const int> members, int rank,
               uint32_t communicator, std::string group);

  /// Keeps the operation until it succeeds or takeAll() is called.
  void add(Handle operation);
  /// Starts an added operation, as soon as its bytes are there or a source is found. Fails if its Readiness fails.
  Status start(MessageOperation& operation);
  /// Starts all operations that can start by now. The engine's ticks call it. Fails if a Readiness fails.
  Status startWaiting();
  /// Operations that have not ended, in the order of their calls.
  const std::vector<Handle>& underWay() const { return operations_; }
  /// Removes and returns all operations. Cancels them at the messenger with `reason`; the caller completes them.
  std::vector<Handle> takeAll(const Status& reason);
  /// The listener is no longer called. Requires: no operation is in flight.
  void close() { engine_.removeWork(*this); }

 private:
  friend struct MessageOperation;

  /// Gives the message its sequence number among the messages of its rank and tag.
  void assignSequence(MessageOperation& operation);
  Status findSource(MessageOperation& operation);
  /// Passes it to the messenger if its bytes are there.
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
  int firstSource_ = 0;  ///< where the next search for a source begins, so that every rank gets its turn
  std::map<std::pair<int, uint32_t>, uint64_t> numSent_, numReceived_;  ///< messages per rank and tag
  Status failure_;                                                      ///< reported outside the messenger
  int failedRank_ = -1;
};

}  // namespace agspeed::comm

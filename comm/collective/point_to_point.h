// SPDX-License-Identifier: Apache-2.0
// PointToPoint: runs sends and receives between two ranks of a group. Sends and receives have no order with
// collectives.
//
// Both ends count the messages of one tag, so the n-th send matches the n-th receive. A receive from any rank probes
// for messages periodically. It must probe, because the messenger takes a receive only with a source rank, and because
// a message without a posted receive wakes no waiting thread. When such a receive finds a message, it takes the next
// number among the receives from that rank.
//
// Threading: all functions run on the engine's driver. The listener is not called from within Transfer::finished(), so
// it may cancel transfers.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/engine/operation.h"

namespace agspeed::comm::collective {

/// The rank of a receive that accepts the message of the first rank that sends one.
constexpr int kAnyRank = INT32_MIN;

class PointToPoint;

/// A send or receive in flight.
struct MessageOperation final : engine::Operation, messaging::Transfer {
  using engine::Operation::Operation;
  void finished(const Status& status) override;
  std::string describe() const override;
  int sourceRank() const override { return isSend ? -1 : rank; }

  PointToPoint* owner = nullptr;
  int rank = -1;  ///< the peer's rank in the group, or kAnyRank until it is known
  uint32_t tag = 0;
  bool isSend = false;
  bool isPending = false;  ///< whether the messenger has the transfer in flight
  io::Clock::time_point started, deadline;
  engine::Readiness readiness;  ///< returns whether the bytes to send are ready; null once they are ready
};

/// Describes the operation: "send to rank 1 (12 bytes, tag 3)".
std::string toString(const MessageOperation& operation);

class TransferListener {
 public:
  /// Reports that a transfer with `rank` of the group has failed. Its operation stays in flight until takeAll(). Only
  /// the first failure is reported.
  virtual void transferFailed(int rank, const Status& status) = 0;

 protected:
  ~TransferListener() = default;
};

class PointToPoint final : private engine::Worker {
 public:
  using Handle = std::shared_ptr<MessageOperation>;

  /// Constructs the object of one rank. `members[i]`: the number by which the messenger addresses rank i of the group.
  /// `rank`: this rank's index in `members`. `communicator`: a number in every message, so that messages of different
  /// groups do not match. `group`: the group's name, for logs.
  PointToPoint(engine::Engine& engine, TransferListener& listener, std::span<const int> members, int rank,
               uint32_t communicator, std::string group);

  /// Adds an operation, which is kept until it succeeds or takeAll() is called.
  void add(Handle operation);
  /// Starts an added operation if its bytes are ready and its source is known. Otherwise startWaiting() starts it
  /// later. Fails if the operation's Readiness fails.
  Status start(MessageOperation& operation);
  /// Starts all added operations that can start by now. Call it at each tick of the engine. Fails if a Readiness fails.
  Status startWaiting();
  /// Returns the operations that are not done, in the order of their calls.
  const std::vector<Handle>& underWay() const { return operations_; }
  /// Removes and returns all operations. Cancels them at the messenger with `reason`; the caller completes them.
  std::vector<Handle> takeAll(const Status& reason);
  /// Stops reporting to the listener. Requires: no operation is in flight.
  void close() { engine_.removeWork(*this); }

 private:
  friend struct MessageOperation;

  /// Gives the message its sequence number among the messages of its rank and tag.
  void assignSequence(MessageOperation& operation);
  /// Starts a receive from any rank if a rank has sent a message for it; otherwise requests a tick of the engine soon.
  Status findSource(MessageOperation& operation);
  /// Passes the transfer to the messenger if its bytes are ready.
  Status transfer(MessageOperation& operation);
  void transferFinished(MessageOperation& operation, const Status& status);
  void work(uint64_t token) override;

  engine::Engine& engine_;
  TransferListener& listener_;
  const std::span<const int> members_;
  const int rank_;
  const uint32_t communicator_;
  const std::string group_;
  std::vector<Handle> operations_;
  int firstSource_ = 0;  ///< the rank where the next search for a source begins, so that no rank is always last
  std::map<std::pair<int, uint32_t>, uint64_t> numSent_, numReceived_;  ///< number of messages by rank and tag
  std::optional<Status> failure_;                                       ///< the first failure, which work() reports
  int failedRank_ = -1;
};

}  // namespace agspeed::comm::collective

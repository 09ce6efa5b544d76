// SPDX-License-Identifier: Apache-2.0
// ControlMailbox: sends and receives control messages between the ranks of a group, beside their data. There are two
// kinds: the last calls of a rank that waits, and the reason why the group has failed.
//
// Every rank keeps one receive posted per peer, so a control message can arrive at any time. Messages have a fixed
// size. A rank only compares or prints their contents. The mailbox does not report lost ranks, because ranks end when
// they have finished their work. If a rank is still needed, the transfers of its data fail and report the loss.
//
// Threading: all functions run on the engine's driver. The listener is not called from within Transfer::finished(), so
// it may cancel transfers.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/collective/call_history.h"
#include "comm/engine/engine.h"

namespace agspeed::comm::collective {

enum class ControlKind : uint32_t {
  kWaiting = 1,  ///< the sender waits for the receiver: `history` has the sender's last calls
  kFailed = 2,   ///< the sender's group has failed: `text`, `code` and `lostRank` say why
};

/// A control message. Its bytes are sent as they are, because both ends have the same layout and byte order.
struct ControlMessage {
  static constexpr size_t kTextBytes = 512;

  ControlKind kind = ControlKind::kWaiting;
  uint32_t code = 0;  ///< the StatusCode of a failure
  uint32_t textLength = 0;
  int32_t lostRank = -1;                   ///< rank of the group whose loss is the reason, or -1
  RecentCalls history = {};                ///< the awaited call and the calls before it
  std::array<char, kTextBytes> text = {};  ///< why the group failed

  /// Returns the text: at most kTextBytes, even if the peer sent a larger `textLength`.
  std::string_view reason() const { return {text.data(), std::min<size_t>(textLength, kTextBytes)}; }
};

class ControlListener {
 public:
  virtual void controlMessageArrived(int rank, const ControlMessage& message) = 0;

 protected:
  ~ControlListener() = default;
};

class ControlMailbox final : private engine::Worker {
 public:
  /// Constructs the mailbox of one rank. `members[i]`: the number by which the messenger addresses rank i of the group.
  /// `rank`: this rank's index in `members`. `communicator`: a number in every message, so that messages of different
  /// groups do not match.
  ControlMailbox(engine::Engine& engine, ControlListener& listener, std::span<const int> members, int rank,
                 uint32_t communicator);

  /// Posts a receive for each other rank.
  void open();
  /// Cancels the receives and all sends in flight.
  void close();
  void send(int rank, const ControlMessage& message);

 private:
  /// The send or receive of one control message.
  struct ControlTransfer final : messaging::Transfer {
    void finished(const Status& result) override { owner->transferFinished(*this, result); }

    ControlMailbox* owner = nullptr;
    int rank = -1;
    bool isSend = false;
    bool isPending = false;  ///< the messenger has the transfer in flight
    ControlMessage message;
    Status status;
  };

  std::unique_ptr<ControlTransfer> makeTransfer(int rank, bool isSend);
  void post(ControlTransfer& transfer);
  void transferFinished(ControlTransfer& transfer, const Status& status);
  void work(uint64_t token) override;

  engine::Engine& engine_;
  ControlListener& listener_;
  const std::span<const int> members_;
  const int rank_;
  const uint32_t communicator_;
  std::vector<uint64_t> numSent_, numReceived_;  ///< by rank: number of messages so far
  std::vector<std::unique_ptr<ControlTransfer>> transfers_;
};

}  // namespace agspeed::comm::collective

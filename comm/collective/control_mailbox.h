// SPDX-License-Identifier: Apache-2.0
// Control messages of the ranks of a group beside their data: "I wait; these are my last calls" and "the group failed".
//
// Every rank keeps one receive posted per peer, so a message arrives whatever the peer is doing. Messages have one
// fixed size and are compared or shown, never executed. A rank that cannot be heard any more is none of this file's
// business: ranks leave when they are done, and whoever still needs one learns of it from its own messages.
//
// Threading: on the engine's driver. The listener is not called from within the messenger.
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

namespace agspeed::comm {

enum class ControlKind : uint32_t { kWaiting = 1, kFailed = 2 };

/// The message: fixed layout, both ends the same byte order.
struct ControlMessage {
  static constexpr size_t kTextBytes = 512;

  ControlKind kind = ControlKind::kWaiting;
  uint32_t code = 0;  ///< the StatusCode of a failure
  uint32_t textLength = 0;
  int32_t lostRank = -1;                   ///< of the group, where its loss is the reason
  RecentCalls history = {};                ///< the awaited call and those before it
  std::array<char, kTextBytes> text = {};  ///< why the group failed

  /// Never more than kTextBytes, whatever the peer wrote.
  std::string_view reason() const { return {text.data(), std::min<size_t>(textLength, kTextBytes)}; }
};

class ControlListener {
 public:
  virtual void controlMessageArrived(int rank, const ControlMessage& message) = 0;

 protected:
  ~ControlListener() = default;
};

class ControlMailbox final : private Worker {
 public:
  /// `members` are the messenger's ranks of the group, `rank` the own place among them; messages carry `communicator`.
  ControlMailbox(Engine& engine, ControlListener& listener, std::span<const int> members, int rank,
                 uint32_t communicator);

  /// Posts the receives.
  void open();
  /// Ends them, and messages that are still on their way.
  void close();
  void send(int rank, const ControlMessage& message);

 private:
  /// A message on its way in or out.
  struct ControlTransfer final : Transfer {
    void finished(const Status& result) override { owner->transferFinished(*this, result); }

    ControlMailbox* owner = nullptr;
    int rank = -1;
    bool isSend = false;
    bool isPending = false;
    ControlMessage message;
    Status status;
  };

  std::unique_ptr<ControlTransfer> makeTransfer(int rank, bool isSend);
  void post(ControlTransfer& transfer);
  void transferFinished(ControlTransfer& transfer, const Status& status);
  void work(uint64_t token) override;

  Engine& engine_;
  ControlListener& listener_;
  const std::span<const int> members_;
  const int rank_;
  const uint32_t communicator_;
  std::vector<uint64_t> numSent_, numReceived_;  ///< per rank
  std::vector<std::unique_ptr<ControlTransfer>> transfers_;
};

}  // namespace agspeed::comm

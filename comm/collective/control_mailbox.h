// SPDX-License-Identifier: Apache-2.0
// What the ranks of a group tell each other beside their data: "I wait; these are my last calls" and "the group
// failed".
//
// Every rank keeps one receive posted per peer, so a notice arrives whatever the peer is doing. Notices have one fixed
// size and are compared or shown, never executed. A rank that cannot be heard any more is none of this file's business:
// ranks leave when they are done, and whoever still needs one learns of it from his own messages.
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

#include "comm/collective/call.h"
#include "comm/collective/engine.h"

namespace agspeed::comm {

/// One call of a rank, as others compare it.
struct HistoryEntry {
  uint64_t sequence = 0;  ///< counts from 1; 0: no entry
  uint64_t chain = 0;     ///< hash of all calls up to this one
  Descriptor descriptor;
};

enum class NoticeKind : uint32_t { kWaiting = 1, kFailed = 2 };

/// The message: fixed layout, both ends the same byte order.
struct Notice {
  static constexpr size_t kNumEntries = 8;
  static constexpr size_t kTextBytes = 512;

  NoticeKind kind = NoticeKind::kWaiting;
  uint32_t code = 0;  ///< the StatusCode of a failure
  uint32_t textLength = 0;
  int32_t lostRank = -1;                               ///< of the group, where its loss is the reason
  std::array<HistoryEntry, kNumEntries> history = {};  ///< the awaited call and those before it
  std::array<char, kTextBytes> text = {};              ///< why the group failed

  /// Never more than kTextBytes, whatever the peer wrote.
  std::string_view reason() const { return {text.data(), std::min<size_t>(textLength, kTextBytes)}; }
};

class NoticeListener {
 public:
  virtual void noticeArrived(int rank, const Notice& notice) = 0;

 protected:
  ~NoticeListener() = default;
};

class Notices final : private Worker {
 public:
  /// `members` are the messenger's ranks of the group, `rank` the own place among them; messages carry `communicator`.
  Notices(Engine& engine, NoticeListener& listener, std::span<const int> members, int rank, uint32_t communicator);

  /// Posts the receives.
  void open();
  /// Ends them, and notices that are still on their way.
  void close();
  void send(int rank, const Notice& notice);

 private:
  /// A notice on its way in or out.
  struct Letter final : Transfer {
    void finished(const Status& result) override { owner->letterFinished(*this, result); }

    Notices* owner = nullptr;
    int rank = -1;
    bool isSend = false;
    bool isPending = false;
    Notice notice;
    Status status;
  };

  std::unique_ptr<Letter> makeLetter(int rank, bool isSend);
  void post(Letter& letter);
  void letterFinished(Letter& letter, const Status& status);
  void work(uint64_t token) override;

  Engine& engine_;
  NoticeListener& listener_;
  const std::span<const int> members_;
  const int rank_;
  const uint32_t communicator_;
  std::vector<uint64_t> numSent_, numReceived_;  ///< per rank
  std::vector<std::unique_ptr<Letter>> letters_;
  bool isOpen_ = false;
};

}  // namespace agspeed::comm

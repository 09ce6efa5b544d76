// SPDX-License-Identifier: Apache-2.0
// Reachability: which rails lead to one peer, why the others do not, and whether the peer is to be given up. It is
// given up when nobody listens on any of its rails any more (its process has ended), its own connections have ended,
// too, and nothing that it sent before has arrived for a few ticks; when no rail has led to it for peerTimeout, or for
// connectTimeout where nobody was ever found.
//
// A peer that is given up stays so. Not thread-safe; no clock of its own.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "comm/transport/transport.h"

namespace agspeed::comm {

struct ReachabilityOptions {
  std::chrono::milliseconds peerTimeout{10000};    ///< without any rail that leads to the peer
  std::chrono::milliseconds connectTimeout{1000};  ///< the same, where nobody was ever found
};

class Reachability {
 public:
  enum class Verdict {
    kFine,
    kWarn,         ///< no rail has led to it for a while; said once
    kEnded,        ///< nobody listens there any more
    kUnreachable,  ///< no rail has led to it for longer than the timeout
  };

  explicit Reachability(size_t numRails);

  bool isUp(size_t rail) const { return isUp_[rail]; }
  bool isReached() const;
  /// Whether rails have failed and none leads to the peer.
  bool isSought() const { return downSince_ != Clock::time_point(); }
  bool isLost() const { return stage_ == Stage::kLost; }
  /// Whether a rail has ever led to it, and it is not given up.
  bool wasReached() const { return stage_ == Stage::kReached; }
  /// What the rails said last: the end of a sentence.
  const std::string& lastFailure() const { return lastFailure_; }

  /// The rail leads to the peer. Returns: whether it did not before.
  bool railUp(size_t rail);
  /// It does not. Returns: whether it did before. A rail that finds no partner (kUnpaired) says nothing of the peer:
  /// others tell whether it is there.
  bool railDown(size_t rail, LossCause cause, const std::string& failure, Clock::time_point now);
  /// Something arrived from the peer's process.
  void heard() { numQuietTicks_ = 0; }
  /// A tick passes.
  void tick() { ++numQuietTicks_; }
  void markLost() { stage_ = Stage::kLost; }

  /// `mayStillReceive`: connections of the peer are open.
  Verdict check(Clock::time_point now, bool mayStillReceive, const ReachabilityOptions& options);
  /// Since no rail leads to the peer.
  std::chrono::milliseconds downFor(Clock::time_point now) const;

 private:
  enum class Stage { kNew, kReached, kLost };

  std::ptrdiff_t count(LossCause cause) const;

  Stage stage_ = Stage::kNew;
  std::vector<bool> isUp_;
  std::vector<LossCause> causes_;  ///< of the rails' last failures; meaningful while none is up
  bool wasFound_ = false;          ///< somebody was there, if only to close the connection
  Clock::time_point downSince_{};  ///< when the last rail was lost, or the first one failed
  int numQuietTicks_ = 0;          ///< since then, or since something last arrived
  bool isWarned_ = false;
  std::string lastFailure_;
};

}  // namespace agspeed::comm

// SPDX-License-Identifier: Apache-2.0
// Reachability: records which rails lead to one peer and why the others do not, and decides whether the peer is lost. A
// peer is lost in two cases:
//
//   its process has ended   no process listens on any of its rails, the connections that it made have ended, and no
//                           frame has arrived for a few ticks
//   it is unreachable       no rail has led to it for peerTimeout, or for connectTimeout if no process was ever found
//                           at its addresses
//
// A lost peer stays lost. Not thread-safe; no clock of its own.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "comm/transport/transport.h"

namespace agspeed::comm::multirail {

struct ReachabilityOptions {
  std::chrono::milliseconds peerTimeout{10000};    ///< limit of the time without a rail that leads to the peer
  std::chrono::milliseconds connectTimeout{1000};  ///< the same limit if no process was ever found at its addresses
};

class Reachability {
 public:
  enum class Verdict {
    kFine,
    kWarn,         ///< no rail has led to the peer for a while; returned once
    kEnded,        ///< the peer's process has ended
    kUnreachable,  ///< no rail has led to the peer for longer than the timeout
  };

  explicit Reachability(size_t numRails);

  bool isUp(size_t rail) const { return isUp_[rail]; }
  /// Whether a rail leads to the peer now.
  bool isReached() const;
  /// Whether no rail leads to the peer, and at least one rail with a partner has failed. The rails keep trying to reach
  /// the peer.
  bool isSought() const { return downSince_ != io::Clock::time_point(); }
  bool isLost() const { return stage_ == Stage::kLost; }
  /// Whether a rail has ever led to the peer and the peer is not lost.
  bool wasReached() const { return stage_ == Stage::kReached; }
  /// Returns the last failure that a rail has reported, as the end of a sentence.
  const std::string& lastFailure() const { return lastFailure_; }

  /// Records that the rail leads to the peer from now on. Returns false if it already led to the peer. Requires:
  /// !isLost().
  bool railUp(size_t rail);
  /// Records that the rail does not lead to the peer from now on, and why. Returns true if it led to the peer before.
  /// A rail without a partner among the peer's rails (kUnpaired) says nothing about the peer. Only the other rails show
  /// whether the peer's process exists.
  bool railDown(size_t rail, transport::LossCause cause, const std::string& failure, io::Clock::time_point now);
  /// Records that a frame has arrived from the peer's process.
  void heard() { numQuietTicks_ = 0; }
  /// Counts a tick, for the quiet time before the peer is lost.
  void tick() { ++numQuietTicks_; }
  void markLost() { stage_ = Stage::kLost; }

  /// Decides whether the peer is lost, or whether a warning is due. `mayStillReceive`: whether a connection that the
  /// peer has made is still open.
  Verdict check(io::Clock::time_point now, bool mayStillReceive, const ReachabilityOptions& options);
  /// Returns for how long no rail has led to the peer. Requires: isSought().
  std::chrono::milliseconds downFor(io::Clock::time_point now) const;

 private:
  enum class Stage { kNew, kReached, kLost };

  /// Returns how many rails have this cause in causes_.
  std::ptrdiff_t count(transport::LossCause cause) const;

  Stage stage_ = Stage::kNew;
  std::vector<bool> isUp_;
  std::vector<transport::LossCause>
      causes_;                         ///< the causes of the rails' last failures; meaningful while no rail is up
  bool wasFound_ = false;              ///< a process has answered at an address of the peer, or closed a connection
  io::Clock::time_point downSince_{};  ///< when the last rail was lost, or the first one failed; zero: !isSought()
  int numQuietTicks_ = 0;              ///< ticks since downSince_, or since a frame last arrived
  bool isWarned_ = false;
  std::string lastFailure_;
};

}  // namespace agspeed::comm::multirail

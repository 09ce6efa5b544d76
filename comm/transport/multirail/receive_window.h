// SPDX-License-Identifier: Apache-2.0
// ReceiveWindow: records which of a peer's numbered frames have arrived. Frames may arrive in any order and twice. Not
// thread-safe.
#pragma once

#include <bitset>
#include <cstdint>

namespace agspeed::comm::multirail {

class ReceiveWindow {
 public:
  /// The largest number of frames of one peer in flight. The peer's SendWindow has the same limit.
  static constexpr uint64_t kFrames = 4096;

  /// Returns the first number that has not arrived. All frames with lower numbers have arrived.
  uint64_t next() const { return next_; }
  /// Returns false if the frame has arrived before, or if its number is beyond the window.
  bool isWanted(uint64_t number) const {
    return number >= next_ && number - next_ < kFrames && !hasArrived_[number % kFrames];
  }
  /// Records that the frame has arrived. Requires: isWanted(number).
  void add(uint64_t number) {
    hasArrived_[number % kFrames] = true;
    for (; hasArrived_[next_ % kFrames]; ++next_) hasArrived_[next_ % kFrames] = false;
  }

 private:
  uint64_t next_ = 1;
  std::bitset<kFrames> hasArrived_;  ///< number n of [next_, next_ + kFrames) is at index n % kFrames
};

}  // namespace agspeed::comm::multirail

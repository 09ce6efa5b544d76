// SPDX-License-Identifier: Apache-2.0
// ReceiveWindow: which of a peer's counted frames have arrived. Frames come in any order, some twice. Not thread-safe.
#pragma once

#include <bitset>
#include <cstdint>

namespace agspeed::comm {

class ReceiveWindow {
 public:
  /// Frames of one peer that may be under way at once; its sender keeps to it.
  static constexpr uint64_t kFrames = 4096;

  /// All frames with lower numbers have arrived.
  uint64_t next() const { return next_; }
  /// Whether the frame is neither here already nor impossibly far ahead.
  bool isWanted(uint64_t number) const {
    return number >= next_ && number - next_ < kFrames && !hasArrived_[number % kFrames];
  }
  /// Requires: isWanted(number).
  void add(uint64_t number) {
    hasArrived_[number % kFrames] = true;
    for (; hasArrived_[next_ % kFrames]; ++next_) hasArrived_[next_ % kFrames] = false;
  }

 private:
  uint64_t next_ = 1;
  std::bitset<kFrames> hasArrived_;  ///< of the numbers [next_, next_ + kFrames)
};

}  // namespace agspeed::comm

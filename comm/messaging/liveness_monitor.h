// SPDX-License-Identifier: Apache-2.0
// LivenessMonitor: detects whether a peer still drives its messenger while transfers wait for it. The state of the
// connection does not show whether the process works: the peer's kernel acknowledges data even if the process is
// stopped or hangs. A process that is busy with computations still answers, because a background thread of its engine
// drives the messenger.
//
// The owner calls check() every kInterval while a transfer waits for the peer. Otherwise no probe is sent. Each check
// adds at most 200 ms to the measured silence, because this process may itself have been stopped since the last check.
// Not thread-safe.
#pragma once

#include <algorithm>
#include <chrono>
#include <utility>

#include "comm/messaging/messenger.h"

namespace agspeed::comm::messaging {

class LivenessMonitor {
 public:
  /// The interval between two calls of check().
  static constexpr std::chrono::milliseconds kInterval{100};

  enum class Verdict {
    kFine,
    kProbe,     ///< the peer is silent: the caller must send a probe
    kWarn,      ///< the peer has not answered the probe: the caller should log a warning
    kAnswered,  ///< the peer has answered after a warning
    kLost,      ///< the peer has been silent for longer than the timeout
  };

  /// Records that a frame has arrived from the peer's process.
  void heard() { hasHeard_ = true; }
  /// Returns how long the peer had been silent at the last check(). Only time in which transfers waited for the peer
  /// counts.
  io::Clock::duration silence() const { return silence_; }

  /// Updates the measured silence, and returns what the caller has to do. `isAwaited`: a transfer waits for the peer,
  /// and the peer is connected.
  Verdict check(io::Clock::time_point now, bool isAwaited, io::Clock::duration timeout) {
    const io::Clock::duration elapsed = std::min<io::Clock::duration>(now - checkedAt_, 2 * kInterval);
    const bool wasAwaited = std::exchange(isAwaited_, isAwaited);
    checkedAt_ = now;
    const bool hasHeard = std::exchange(hasHeard_, false);
    if (hasHeard || !isAwaited) {
      isProbed_ = false;
      silence_ = {};
      return std::exchange(isWarned_, false) && hasHeard ? Verdict::kAnswered : Verdict::kFine;
    }
    if (wasAwaited) silence_ += elapsed;
    if (isWarned_ && silence_ >= timeout) return Verdict::kLost;
    if (!isProbed_ && silence_ >= kProbeAfter) {
      isProbed_ = true;
      return Verdict::kProbe;
    }
    if (!isWarned_ && silence_ >= kWarnAfter) {
      isWarned_ = true;
      return Verdict::kWarn;
    }
    return Verdict::kFine;
  }

 private:
  static constexpr std::chrono::milliseconds kProbeAfter{200};
  static constexpr std::chrono::milliseconds kWarnAfter{500};

  io::Clock::time_point checkedAt_{};
  io::Clock::duration silence_{};
  bool hasHeard_ = false;
  bool isAwaited_ = false;
  bool isProbed_ = false;
  bool isWarned_ = false;
};

}  // namespace agspeed::comm::messaging

// SPDX-License-Identifier: Apache-2.0
// LivenessMonitor: whether a peer that transfers wait for still drives its messenger. Its kernel does not show that,
// because it also answers for a process that is stopped or hangs. A process that computes answers, because its engine
// drives in the background.
//
// It is checked regularly while a transfer waits for the peer; otherwise nothing is sent. The time between two checks
// counts for at most 200 ms, because this process may have been stopped itself. Not thread-safe.
#pragma once

#include <algorithm>
#include <chrono>
#include <utility>

#include "comm/messaging/messenger.h"

namespace agspeed::comm {

class LivenessMonitor {
 public:
  /// The interval between checks.
  static constexpr std::chrono::milliseconds kInterval{100};

  enum class Verdict {
    kFine,
    kProbe,     ///< silent for a while: send a probe
    kWarn,      ///< it has not answered the probe
    kAnswered,  ///< it has answered after a warning
    kLost,      ///< silent for longer than the timeout
  };

  /// A frame has arrived from the peer's process.
  void heard() { hasHeard_ = true; }
  Clock::duration silence() const { return silence_; }

  /// `isAwaited`: a transfer waits for the peer, and the peer is connected.
  Verdict check(Clock::time_point now, bool isAwaited, Clock::duration timeout) {
    const Clock::duration elapsed = std::min<Clock::duration>(now - checkedAt_, 2 * kInterval);
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

  Clock::time_point checkedAt_{};
  Clock::duration silence_{};
  bool hasHeard_ = false;
  bool isAwaited_ = false;
  bool isProbed_ = false;
  bool isWarned_ = false;
};

}  // namespace agspeed::comm

// SPDX-License-Identifier: Apache-2.0
// RankRecord: the events of one rank between two meetings of its group, as the rank sends them to the others.
//
// A plain value. Its text is JSON, which only this file writes and reads. Ranks of one group run the same agspeed.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/tune/tuner.h"

namespace agspeed::runtime::tune {

struct RankRecord {
  struct Capture {
    std::string failure;  ///< why there is no graph; empty if there is one
    double seconds = 0;
  };

  uint64_t digest = 0;          ///< of everything that the rank's tuner got and asked for so far
  bool hasCarriedOut = true;    ///< whether the rank has carried out the actions of the latest meeting
  std::string leaving;          ///< why this rank stops tuning; empty if it does not
  double startUpSeconds = 0;    ///< see Tuner::started
  double pausedSeconds = 0;     ///< see Tuner::paused
  double captureEstimate = -1;  ///< see Tuner::expectCapture; negative: none
  double loadEstimate = 0;      ///< see Tuner::expectLoads
  int64_t numSearches = 1;      ///< see Tuner::shareBudget
  std::string adopted;          ///< the arm in this rank's database; empty: none
  int64_t numSkipped = 0;       ///< steps without a report, and their seconds
  double skippedSeconds = 0;
  std::optional<Capture> capture;
  bool hasGrown = false;                 ///< see Tuner::captureGrew
  std::string findings;                  ///< see Tuner::resume; empty: none
  std::vector<ArmSpec> newArms;          ///< see Tuner::addArm
  std::map<std::string, ArmEvent> arms;  ///< by name: the latest state, seconds of all events
  std::optional<StepReport> step;

  std::string toText() const;
  /// Returns: invalid argument for a text that toText() has not written.
  static StatusOr<RankRecord> parse(std::string_view text);
};

}  // namespace agspeed::runtime::tune

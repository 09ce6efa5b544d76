// SPDX-License-Identifier: Apache-2.0
// RankRecord: what happened to one rank between two meetings of its group, as it tells the others.
//
// A plain value; its text is JSON, written and read by this file alone. Ranks of one group run the same agspeed.
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
    std::string failure;  ///< why there is no graph; empty where there is one
    double seconds = 0;
  };

  uint64_t digest = 0;          ///< of all that the rank's tuner was told and asked for so far
  bool hasCarriedOut = true;    ///< what the latest meeting asked for
  std::string leaving;          ///< why this rank tunes no longer; empty where it does
  double startUpSeconds = 0;    ///< see Tuner::started
  double pausedSeconds = 0;     ///< see Tuner::paused
  double captureEstimate = -1;  ///< see Tuner::expectCapture; negative: none
  double loadEstimate = 0;      ///< see Tuner::expectLoads
  int64_t numSearches = 1;      ///< see Tuner::shareBudget
  std::string adopted;          ///< what this rank's database says; empty: nothing
  int64_t numSkipped = 0;       ///< steps without a report, and their seconds
  double skippedSeconds = 0;
  std::optional<Capture> capture;
  bool hasGrown = false;                 ///< see Tuner::captureGrew
  std::string findings;                  ///< see Tuner::resume; empty: none
  std::vector<ArmSpec> newArms;          ///< see Tuner::addArm
  std::map<std::string, ArmEvent> arms;  ///< by name: the latest state, seconds of all events
  std::optional<StepReport> step;

  std::string toText() const;
  /// Returns: invalid argument for anything that toText() has not written.
  static StatusOr<RankRecord> parse(std::string_view text);
};

}  // namespace agspeed::runtime::tune

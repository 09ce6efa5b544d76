// SPDX-License-Identifier: Apache-2.0
// What an unfinished tuning has found out about its arms, as text: a later process with the same key goes on from it.
//
//   {"version": 1, "arms": [{"name": "native", "verdict": "open", "reason": "", "beaten_by": "",
//                            "pairs": [[2100000, 1700000, 2130000, 1715000], …],
//                            "duel": {"against": "aot", "pairs": […]}}, …]}
//
// A pair is [reference, arm, mean of the reference, mean of the arm], in nanoseconds a step. Arms of which nothing is
// known are left out. Plain values; pure functions, safe from any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/tune/arm.h"

namespace agspeed::runtime::tune {

struct ArmFindings {
  std::string name;
  bool isLost = false;
  std::string reason;    ///< why it lost
  std::string beatenBy;  ///< see Arm
  std::vector<RunPair> pairs;
  std::string duelAgainst;
  std::vector<RunPair> duelPairs;

  bool isEmpty() const { return !isLost && pairs.empty() && duelPairs.empty(); }
};

/// Of an arm as it stands.
ArmFindings findingsOf(const Arm& arm);
/// Gives an arm of which nothing is known what an earlier process found. What won there has to win here again.
void restore(const ArmFindings& findings, Arm& arm);

std::string toText(const std::vector<ArmFindings>& findings);
/// Returns: invalid argument with the reason where the text is damaged or of another version.
StatusOr<std::vector<ArmFindings>> parseFindings(std::string_view text);

}  // namespace agspeed::runtime::tune

// SPDX-License-Identifier: Apache-2.0
// The findings of an unfinished tuning about its arms, as text. A later process with the same key continues from them.
//
//   {"version": 1, "arms": [{"name": "native", "verdict": "open", "reason": "", "beaten_by": "",
//                            "pairs": [[2100000, 1700000, 2130000, 1715000], …],
//                            "duel": {"against": "aot", "pairs": […]}}, …]}
//
// A pair is [reference, arm, mean of the reference, mean of the arm], in nanoseconds per step. Arms without findings
// are omitted. Plain values; pure functions, safe from any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/tune/arms/arm.h"

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

/// Returns the findings about an arm in its current state.
ArmFindings findingsOf(const Arm& arm);
/// Gives an arm without findings the findings of an earlier process. An arm that won there has to win again here.
void restore(const ArmFindings& findings, Arm& arm);

std::string toText(const std::vector<ArmFindings>& findings);
/// Returns: invalid argument with the reason if the text is damaged or has another version.
StatusOr<std::vector<ArmFindings>> parseFindings(std::string_view text);

}  // namespace agspeed::runtime::tune

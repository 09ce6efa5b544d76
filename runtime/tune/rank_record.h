// SPDX-License-Identifier: Apache-2.0
// RankRecord: the events of one rank between two syncs of its group, as the rank sends them to the others.
//
// Several events of a rank become one: for an arm, the latest state and the sum of seconds; for steps, one step; for
// each other kind, one event (rank_record_format.md says how). A plain value. Its text is JSON, which only this file
// writes and reads. All ranks of a group run the same version of agspeed.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/tune/tuner_event.h"

namespace agspeed::runtime::tune {

struct RankRecord {
  uint64_t digest = 0;                          ///< a hash of all input and all actions of the rank's tuner so far
  bool hasCarriedOut = true;                    ///< whether the rank has carried out the actions of the latest sync
  std::string leaving = {};                     ///< why this rank stops tuning; empty if it does not
  std::vector<TunerEvent> sums = {};            ///< events of all kinds without a member below: at most one per kind
  std::optional<CaptureFailed> capture = {};    ///< the latest result; without a reason if there is a graph
  bool hasGrown = false;                        ///< see CaptureGrew
  std::vector<ArmSpec> newArms = {};            ///< see ArmAdded
  std::map<std::string, ArmChanged> arms = {};  ///< by name
  std::optional<StepFinished> step = {};

  void add(const TunerEvent& event);
  /// Returns how many tuners share the budget.
  BudgetShared searches() const;
  std::string toText() const;
  /// Returns: invalid argument for a text that toText() has not written.
  static StatusOr<RankRecord> parse(std::string_view text);
};

/// Combines `sums` of all ranks to at most one event of each kind. Numbers are the highest of any rank. Texts are from
/// the lowest rank that has one.
std::vector<TunerEvent> combineSums(const std::vector<RankRecord>& records);

}  // namespace agspeed::runtime::tune

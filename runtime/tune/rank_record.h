// SPDX-License-Identifier: Apache-2.0
// RankRecord: the events of one rank between two syncs of its group, as the rank sends them to the others.
//
// Events join: an arm has its latest state and the seconds of all its events, several steps count as one, and other
// events join into one of their kind. A plain value. Its text is JSON, which only this file writes and reads, and which
// rank_record_format.md describes. Ranks of one group run the same agspeed.
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
  uint64_t digest = 0;                          ///< of everything that the rank's tuner got and asked for so far
  bool hasCarriedOut = true;                    ///< whether the rank has carried out the actions of the latest sync
  std::string leaving = {};                     ///< why this rank stops tuning; empty if it does not
  std::vector<TunerEvent> sums = {};            ///< events without a member below: at most one of each kind
  std::optional<CaptureFailed> capture = {};    ///< the latest result; without a reason if there is a graph
  bool hasGrown = false;                        ///< see CaptureGrew
  std::vector<ArmSpec> newArms = {};            ///< see ArmAdded
  std::map<std::string, ArmChanged> arms = {};  ///< by name
  std::optional<StepFinished> step = {};

  void add(const TunerEvent& event);
  /// How many tuners share the budget, which holds until it changes.
  BudgetShared searches() const;
  std::string toText() const;
  /// Returns: invalid argument for a text that toText() has not written.
  static StatusOr<RankRecord> parse(std::string_view text);
};

/// The sums of all ranks, joined to at most one event of each kind: numbers are the highest of any rank, texts are from
/// the lowest rank that has one.
std::vector<TunerEvent> combineSums(const std::vector<RankRecord>& records);

}  // namespace agspeed::runtime::tune

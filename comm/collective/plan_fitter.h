// SPDX-License-Identifier: Apache-2.0
// PlanFitter: fits the operations of a group to the hosts of its ranks and to the network between them.
//
// A plan chooses by facts that all ranks know from the start; what it states, rules and shares, is left as it is. Where
// it states nothing, statistics that the ranks exchange before some calls (host_stats.h) say which ranks form local
// groups, what share of a buffer each rank owns, and which algorithm is quicker on the network as it was measured.
// Equal at all ranks for equal statistics.
//
// Threading: one thread at a time.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "comm/collective/host_stats.h"
#include "comm/engine/call.h"
#include "comm/plan/cost_model.h"
#include "comm/plan/plan.h"

namespace agspeed::comm {

/// What is made of a Choice for the hosts as they are known. Not part of what ranks compare: one may learn of the hosts
/// before it makes a call, another after.
struct FittedChoice {
  const Algorithm* algorithm = nullptr;
  int localGroupSize = 1;  ///< as in ScheduleRequest; 1 where the algorithm does not ask for it
  std::vector<uint32_t> shares;
  size_t segmentBytes = 0;
};

class PlanFitter {
 public:
  /// Of `rank` of a group; its name is for the log.
  PlanFitter(std::string group, int rank, int numRanks, Plan plan);

  /// Holds for calls from now on.
  void setPlan(Plan plan) { plan_ = std::move(plan); }
  uint32_t planVersion() const { return plan_.version; }
  /// How the plan runs the call; equal at all ranks.
  Choice choose(const CollectiveCall& call) const;
  FittedChoice fit(const CollectiveCall& call, const Choice& choice) const;

  /// Counts the call. Returns: whether the ranks exchange statistics before it.
  bool isExchangeDueBefore(const CollectiveCall& call);
  /// The exchange: a gathering into this object, one at a time.
  CollectiveCall exchange() { return stats_.gather(rank_); }
  /// What this rank gives to the exchange that starts now; as HostStatsExchange::contribute().
  void contribute(double bytesPerSecond, double roundTripSeconds, uint32_t host) {
    stats_.contribute(rank_, bytesPerSecond, roundTripSeconds, host);
  }
  /// The exchange has ended: what it says holds for fit() from now on.
  void applyHostStats();

 private:
  void fitRules();

  const std::string group_;
  const int rank_, numRanks_;
  Plan plan_;
  HostStatsExchange stats_;
  int localGroupSize_ = 1;        ///< as in ScheduleRequest
  std::vector<uint32_t> shares_;  ///< of unequal hosts; empty where there are local groups
  std::optional<NetworkMeasurement> network_;
  Plan fitted_;  ///< its rules fit the network as it was measured; none where there are local groups or shares
  std::optional<std::vector<CountedAlgorithm>> counted_;  ///< once it was
};

}  // namespace agspeed::comm

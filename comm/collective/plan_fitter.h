// SPDX-License-Identifier: Apache-2.0
// PlanFitter: fits the operations of a group to the hosts of its ranks and to the network between them.
//
// A plan chooses by facts that all ranks know from the start. Rules and shares that it states are kept. Otherwise the
// statistics that ranks exchange before some calls (host_stats.h) decide which ranks form local groups, what share of a
// buffer each rank owns, and which algorithm is faster on the measured network. Equal statistics give equal results at
// all ranks.
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

/// A Choice, fitted to the known hosts. Ranks do not compare it, because one rank may learn the statistics before it
/// makes a call and another afterwards.
struct FittedChoice {
  const Algorithm* algorithm = nullptr;
  int localGroupSize = 1;  ///< see ScheduleRequest; 1 if the algorithm does not use it
  std::vector<uint32_t> shares;
  size_t segmentBytes = 0;
};

class PlanFitter {
 public:
  /// The fitter of `rank` in a group whose name appears in the log.
  PlanFitter(std::string group, int rank, int numRanks, Plan plan);

  /// Applies to later calls.
  void setPlan(Plan plan) { plan_ = std::move(plan); }
  uint32_t planVersion() const { return plan_.version; }
  /// How the plan runs the call; equal at all ranks.
  Choice choose(const CollectiveCall& call) const;
  FittedChoice fit(const CollectiveCall& call, const Choice& choice) const;

  /// Counts the call. Returns: whether the ranks exchange statistics before it.
  bool isExchangeDueBefore(const CollectiveCall& call);
  /// The collective that exchanges: an all-gather into this object, one at a time.
  CollectiveCall exchange() { return stats_.gather(rank_); }
  /// Sets this rank's statistics for the exchange that starts now; see HostStatsExchange::contribute().
  void contribute(double bytesPerSecond, double roundTripSeconds, uint32_t host) {
    stats_.contribute(rank_, bytesPerSecond, roundTripSeconds, host);
  }
  /// Applies the results of an exchange that has ended to later calls of fit().
  void applyHostStats();

 private:
  void fitRules();

  const std::string group_;
  const int rank_, numRanks_;
  Plan plan_;
  HostStatsExchange stats_;
  int localGroupSize_ = 1;        ///< see ScheduleRequest
  std::vector<uint32_t> shares_;  ///< for unequal hosts; empty if there are local groups
  std::optional<NetworkMeasurement> network_;
  Plan fitted_;  ///< rules that fit the measured network; none with local groups or shares
  std::optional<std::vector<CountedAlgorithm>> counted_;  ///< set at the first use
};

}  // namespace agspeed::comm

// SPDX-License-Identifier: Apache-2.0
// PlanFitter: fits the operations of a group to the hosts of its ranks and to the network between them.
//
// A plan chooses from facts that all ranks know from the start. The fitter keeps the rules and shares that the plan
// states. Before some calls, ranks exchange statistics of their hosts (host_stats.h). The statistics decide which ranks
// form local groups, what share of a buffer each rank owns, and which algorithm is faster on the measured network.
// Equal statistics give equal results at all ranks.
//
// Threading: only one thread at a time may use an object of this class.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "comm/collective/host_stats.h"
#include "comm/engine/call.h"
#include "comm/plan/cost_model.h"
#include "comm/plan/plan.h"
#include "comm/schedule/local_groups.h"

namespace agspeed::comm::collective {

/// A Choice, fitted to the hosts that are known so far. Ranks may make the same call at different times, before and
/// after they get new statistics of hosts. So this choice may differ between ranks, and is not part of the call
/// signature that they compare.
struct FittedChoice {
  const schedule::Algorithm* algorithm = nullptr;
  /// The local groups as in ScheduleRequest; null if the algorithm does not use them. The fitter owns the list.
  const std::vector<int>* localGroups = nullptr;
  std::vector<uint32_t> shares;
  size_t segmentBytes = 0;
};

class PlanFitter {
 public:
  /// Makes the fitter of `rank` in a group. The name of the group appears in the log.
  PlanFitter(std::string group, int rank, int numRanks, plan::Plan plan);

  /// Sets the plan of later calls.
  void setPlan(plan::Plan plan) { plan_ = std::move(plan); }
  uint32_t planVersion() const { return plan_.version; }
  /// Returns the plan's choice for the call, which is equal at all ranks.
  plan::Choice choose(const engine::CollectiveCall& call) const;
  /// Fits a choice to the hosts and the network that are known so far.
  FittedChoice fit(const engine::CollectiveCall& call, const plan::Choice& choice) const;

  /// Takes the bytes of the call into account. Returns: whether the ranks exchange statistics before this call.
  bool isExchangeDueBefore(const engine::CollectiveCall& call);
  /// Returns the all-gather that exchanges the statistics. The all-gather writes into this object, so only one may run
  /// at a time.
  engine::CollectiveCall exchange() { return stats_.gather(rank_); }
  /// Sets this rank's statistics for the exchange that starts now; see HostStatsExchange::contribute().
  void contribute(double bytesPerSecond, double roundTripSeconds, uint32_t host) {
    stats_.contribute(rank_, bytesPerSecond, roundTripSeconds, host);
  }
  /// Evaluates the exchange that has just completed. Later calls of fit() use its results.
  void applyHostStats();

 private:
  void setLocalGroups(std::vector<int> firstRanks);
  void fitRules();

  const std::string group_;
  const int rank_, numRanks_;
  plan::Plan plan_;
  HostStatsExchange stats_;
  std::set<std::vector<int>> knownGroups_;         ///< every list of local groups so far; operations point to them
  const std::vector<int>* localGroups_ = nullptr;  ///< the current list; null if there are no local groups
  std::optional<schedule::LocalGroups> groups_;    ///< made from localGroups_
  std::vector<uint32_t> shares_;                   ///< chunk sizes for unequal hosts; empty if there are local groups
  std::optional<plan::NetworkMeasurement> network_;
  plan::Plan fitted_;  ///< rules for the measured network; empty with local groups or shares
  std::optional<std::vector<plan::CountedAlgorithm>> counted_;  ///< result of countAllReduces(), set at the first use
};

}  // namespace agspeed::comm::collective

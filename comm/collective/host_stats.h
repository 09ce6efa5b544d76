// SPDX-License-Identifier: Apache-2.0
// HostStatsExchange: when the ranks of a group exchange statistics of their hosts, and what follows from these.
//
// Which ranks share a host: longer collectives then reduce and gather there first (comm/schedule/hierarchical.cpp). An
// exchange precedes the first that would.
//
// How fast each can send: an all-reduce cut into equal chunks waits for its slowest host, which has to send 2 (p - 1) /
// p of the buffer like all others; whoever owns a smaller chunk sends less (comm/plan/shares.h). An exchange every now
// and then tells. A rank's rate is the sum of what its rails carry in the better of the times in which several of their
// connections have something to carry: in an all-reduce that waits for a slow host all ranks send as much per second,
// but the slow host's rails are busy all the time, the others' are quick and rest. That is a rough measure, and unequal
// chunks cost equal hosts dearly: a host counts as slow only where several exchanges in a row agree.
//
// How far they are from each other: short all-reduces take another algorithm where messages take long and bytes do not,
// or the other way round (comm/plan/cost_model.h). As many exchanges have to be behind.
//
// Ranks exchange before the same operation; what follows depends on what was gathered alone and is the same everywhere.
//
// Threading: on the engine's driver.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "comm/engine/call.h"
#include "comm/plan/cost_model.h"

namespace agspeed::comm {

class HostStatsExchange {
 public:
  /// Exchanges of rates that have to agree.
  static constexpr size_t kNumExchanges = 3;

  explicit HostStatsExchange(int numRanks) : gathered_(static_cast<size_t>(numRanks)) {}

  /// Counts the call. Returns: whether the ranks exchange statistics before it.
  bool isDueBefore(const CollectiveCall& call);
  /// The exchange: a gathering into this object, one at a time.
  CollectiveCall gather(int rank);
  /// What this rank gives to the exchange that starts now; `host` as in comm/plan/local_groups.h.
  void contribute(int rank, double bytesPerSecond, double roundTripSeconds, uint32_t host) {
    gathered_[static_cast<size_t>(rank)] = {bytesPerSecond, roundTripSeconds, host};
  }
  /// The exchange has ended: takes it in. Returns: the ranks' shares; empty: equal chunks.
  std::vector<uint32_t> shares();
  /// The same for ScheduleRequest::localGroupSize.
  int localGroupSize() const;
  /// What the slowest rank and the farthest two make of the network, or nothing before as many exchanges.
  std::optional<NetworkMeasurement> network() const;
  /// For the log: the rates that were gathered last, "25.0, 12.5, 24.8 MB/s".
  std::string describeRates() const;

 private:
  struct HostStats {
    double bytesPerSecond = 0;    ///< 0: not known
    double roundTripSeconds = 0;  ///< the same
    uint64_t host = 0;
  };

  std::vector<HostStats> gathered_;         ///< by rank
  std::vector<std::vector<double>> rates_;  ///< the rates of those that knew all, the latest last
  bool isFirst_ = true;
  int numDue_ = 0;
  uint64_t numBytes_ = 0, nextAt_ = uint64_t{16} << 20, interval_ = nextAt_;
};

}  // namespace agspeed::comm

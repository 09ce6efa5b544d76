// SPDX-License-Identifier: Apache-2.0
// HostStatsExchange: decides when the ranks of a group exchange statistics of their hosts, and evaluates them.
//
// Which ranks share a host: long collectives reduce and gather within a host first (comm/schedule/hierarchical.cpp). An
// exchange precedes the first call that would.
//
// How fast each rank can send: with equal chunks all ranks send 2 (p - 1) / p of the buffer in an all-reduce, so it
// waits for the slowest host. A rank with a smaller chunk sends less (comm/plan/shares.h). Exchanges are repeated from
// time to time. A rank's rate is the sum of its rails' recent peak rates, measured while several connections of a rail
// have data to send. The current rates would not do: in an all-reduce that waits for a slow host all ranks send the
// same bytes per second, but the slow host's rails are always busy and the others' pause. The measure is rough, and
// unequal chunks cost equal hosts dearly. So a host counts as slow only if several exchanges in a row agree.
//
// How far ranks are from each other: short all-reduces use another algorithm if latency is high compared with the time
// for bytes, or the reverse (comm/plan/cost_model.h). This needs the same number of exchanges.
//
// All ranks exchange before the same operation, and the results depend only on the gathered data, so they are the same
// everywhere.
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
  /// How many exchanges of rates have to agree.
  static constexpr size_t kNumExchanges = 3;

  explicit HostStatsExchange(int numRanks) : gathered_(static_cast<size_t>(numRanks)) {}

  /// Counts the call. Returns: whether the ranks exchange statistics before it.
  bool isDueBefore(const CollectiveCall& call);
  /// The collective that exchanges: an all-gather into this object, one at a time.
  CollectiveCall gather(int rank);
  /// Sets this rank's statistics for the exchange that starts now; comm/plan/local_groups.h defines `host`.
  void contribute(int rank, double bytesPerSecond, double roundTripSeconds, uint32_t host) {
    gathered_[static_cast<size_t>(rank)] = {bytesPerSecond, roundTripSeconds, host};
  }
  /// Evaluates the rates of an exchange that has ended. Returns: the ranks' shares; empty: equal chunks.
  std::vector<uint32_t> shares();
  /// Evaluates the hosts: ScheduleRequest::localGroupSize.
  int localGroupSize() const;
  /// The slowest rank's rate and the longest round trip; nothing until kNumExchanges have ended.
  std::optional<NetworkMeasurement> network() const;
  /// The last gathered rates, for the log: "25.0, 12.5, 24.8 MB/s".
  std::string describeRates() const;

 private:
  struct HostStats {
    double bytesPerSecond = 0;    ///< 0: not known
    double roundTripSeconds = 0;  ///< 0: not known
    uint64_t host = 0;
  };

  std::vector<HostStats> gathered_;         ///< by rank
  std::vector<std::vector<double>> rates_;  ///< rates of the exchanges that knew all rates, the latest last
  bool isFirst_ = true;
  int numDue_ = 0;
  uint64_t numBytes_ = 0, nextAt_ = uint64_t{16} << 20, interval_ = nextAt_;
};

}  // namespace agspeed::comm

// SPDX-License-Identifier: Apache-2.0
// HostStatsExchange: decides when the ranks of a group exchange statistics of their hosts, and evaluates them. The
// statistics answer three questions.
//
// Which ranks share a host? Long collectives reduce and gather within a host first (comm/schedule/hierarchical.cpp). So
// an exchange precedes the first long collective.
//
// How fast can each rank send? In an all-reduce of p ranks with equal chunks, every rank sends 2 (p - 1) / p of the
// buffer. So all ranks wait for the slowest host. A rank with a smaller chunk sends less (comm/plan/shares.h). The rate
// of a rank is the sum of its rails' recent peak rates, measured while several connections of a rail have data to send.
// Current rates do not show which host is slow. In an all-reduce that waits for a slow host, all ranks send equally
// many bytes per second, although only the slow host's rails are always busy. Peak rates are inaccurate, and unequal
// chunks make operations between equal hosts much slower. So a host is treated as slow only if several exchanges in a
// row agree. Exchanges are repeated from time to time.
//
// How high is the latency? The fastest algorithm of a short all-reduce depends on the ratio of the latency to the time
// for its bytes (comm/plan/cost_model.h). This choice needs the same number of exchanges as the choice of chunk sizes.
//
// All ranks exchange before the same operation, and the results depend only on the gathered data. So the results are
// equal at all ranks.
//
// Threading: all functions run on the engine's driver.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "comm/engine/call.h"
#include "comm/plan/cost_model.h"

namespace agspeed::comm::collective {

class HostStatsExchange {
 public:
  /// The number of exchanges whose rates must agree.
  static constexpr size_t kNumExchanges = 3;

  explicit HostStatsExchange(int numRanks) : gathered_(static_cast<size_t>(numRanks)) {}

  /// Takes the bytes of the call into account. Returns: whether the ranks exchange statistics before this call.
  bool isDueBefore(const engine::CollectiveCall& call);
  /// Returns the all-gather that exchanges the statistics. The all-gather writes into this object, so only one may run
  /// at a time.
  engine::CollectiveCall gather(int rank);
  /// Sets this rank's statistics for the exchange that starts now; comm/plan/local_groups.h defines `host`.
  void contribute(int rank, double bytesPerSecond, double roundTripSeconds, uint32_t host) {
    gathered_[static_cast<size_t>(rank)] = {bytesPerSecond, roundTripSeconds, host};
  }
  /// Evaluates the rates of the exchange that has just completed. Call it once per exchange. Returns: the relative
  /// chunk sizes of the ranks; empty: equal chunks.
  std::vector<uint32_t> shares();
  /// Returns the local groups of the gathered hosts; see plan::localGroupsOf().
  std::vector<int> localGroups() const;
  /// Returns the rate of the slowest rank, and the latency of the longest round trip. Returns nullopt until all rates
  /// were known in kNumExchanges exchanges, or if a round trip is not known.
  std::optional<plan::NetworkMeasurement> network() const;
  /// Describes the last gathered rates for the log: "25.0, 12.5, 24.8 MB/s".
  std::string describeRates() const;

 private:
  struct HostStats {
    double bytesPerSecond = 0;    ///< peak rate at which the rank sends; 0: not known
    double roundTripSeconds = 0;  ///< the longest round trip to another rank; 0: not known
    uint64_t host = 0;            ///< see Messenger::host()
  };

  std::vector<HostStats> gathered_;         ///< statistics of each rank, by rank
  std::vector<std::vector<double>> rates_;  ///< rates by rank, of the last exchanges in which all were known
  bool isFirst_ = true;
  int numDue_ = 0;         ///< number of exchanges after the first one
  uint64_t numBytes_ = 0;  ///< bytes of all large collectives so far
  /// The next exchange is due when numBytes_ reaches nextAt_. interval_: bytes from one exchange to the next.
  uint64_t nextAt_ = uint64_t{16} << 20, interval_ = nextAt_;
};

}  // namespace agspeed::comm::collective

// SPDX-License-Identifier: Apache-2.0
// Balance: when the ranks of a group compare how fast each of them can send, and what came of it.
//
// An all-reduce cut into equal pieces waits for its slowest host, which has to send 2 (p - 1) / p of the buffer like
// all others; whoever owns a smaller piece sends less (comm/plan/shares.h). So every now and then, before the same
// operation at all ranks, they gather their rates; shares follow from what was gathered alone and are the same
// everywhere.
//
// A rank's rate is the sum of what its connections carry while they always have something to carry. In an all-reduce
// that waits for a slow host all ranks send as much per second; but the slow host's connections are busy all the time
// and share what it has, the others' are quick and rest. That is a rough measure, and unequal pieces cost equal hosts
// dearly: a host counts as slow only where several comparisons in a row agree.
//
// Threading: on the engine's driver.
#pragma once

#include <string>
#include <vector>

#include "comm/collective/call.h"

namespace agspeed::comm {

class Balance {
 public:
  /// Comparisons that have to agree.
  static constexpr size_t kNumComparisons = 3;

  explicit Balance(int numRanks) : gathered_(static_cast<size_t>(numRanks)) {}

  /// Counts the call. Returns: whether the ranks compare their rates before it.
  bool isDueBefore(const CollectiveCall& call);
  /// The comparison: a gathering into this object, one at a time.
  CollectiveCall compare(int rank);
  /// What this rank contributes to the comparison that starts now.
  void contribute(int rank, double bytesPerSecond) { gathered_[static_cast<size_t>(rank)] = bytesPerSecond; }
  /// The comparison has ended. Returns: the ranks' shares; empty: equal pieces.
  std::vector<uint32_t> shares();
  /// For the log: what was gathered last, "25.0, 12.5, 24.8 MB/s".
  std::string describe() const;

 private:
  std::vector<double> gathered_;               ///< bytes per second, by rank
  std::vector<std::vector<double>> compared_;  ///< by comparison, the latest last: rates as shares of the highest
  uint64_t numBytes_ = 0, nextAt_ = uint64_t{64} << 20, interval_ = nextAt_;
};

}  // namespace agspeed::comm

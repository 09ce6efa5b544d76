// SPDX-License-Identifier: Apache-2.0
// CallHistory: keeps the last calls of one rank of a group, and compares them with the calls of other ranks.
//
// Every rank hashes its calls into a chain: chain n is a hash of chain n - 1 and of the signature of call n. Ranks with
// equal chains have made the same calls. A rank that waits for long sends the signatures of its last calls to the ranks
// that it waits for. The receiving rank reports the first call that differs from its own call. If it has not made some
// of the received calls yet, it keeps them and compares them later.
//
// Threading: only one thread at a time may use an object of this class.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "comm/engine/call.h"

namespace agspeed::comm::collective {

/// One call of a rank, in the form that ranks compare.
struct HistoryEntry {
  uint64_t sequence = 0;  ///< number of the call, from 1; 0: no entry
  uint64_t chain = 0;     ///< hash of all calls up to this one
  engine::CallSignature signature;
};

/// A call and the calls before it, the latest first.
using RecentCalls = std::array<HistoryEntry, 8>;

class CallHistory {
 public:
  /// The number of calls that are kept.
  static constexpr size_t kNumEntries = 64;

  /// Makes the empty history of `rank` in the group. Both names appear in errors.
  CallHistory(std::string group, int rank) : group_(std::move(group)), rank_(rank) {}

  /// Appends a call. Returns: its entry, valid until kNumEntries further calls.
  const HistoryEntry& add(const engine::CallSignature& signature);
  /// Returns call `sequence` and the calls before it. Calls that are not kept any more have no entry.
  RecentCalls recent(uint64_t sequence) const;
  /// Returns the last call; its sequence is 0 if there is none.
  const HistoryEntry& last() const { return at(sequence_); }
  /// Compares this rank's calls with the last calls of another rank. Returns: a sentence about the first call that
  /// differs; nullopt: none differs. If this rank has not made all of these calls yet, checkRanksAhead() compares them
  /// again later.
  std::optional<std::string> check(int rank, const RecentCalls& calls);
  /// Compares this rank's calls with the kept calls of ranks that were ahead of it. Returns: see check().
  std::optional<std::string> checkRanksAhead();

 private:
  std::optional<std::string> findMismatch(int rank, const RecentCalls& calls) const;
  const HistoryEntry& at(uint64_t sequence) const { return entries_[sequence % kNumEntries]; }

  const std::string group_;
  const int rank_;
  uint64_t sequence_ = 0, chain_ = 0;                   ///< sequence and chain of the last call
  std::array<HistoryEntry, kNumEntries> entries_ = {};  ///< call i is at index i % kNumEntries
  std::map<int, RecentCalls> ranksAhead_;  ///< by rank: last calls of ranks that have made more calls than this rank
};

}  // namespace agspeed::comm::collective

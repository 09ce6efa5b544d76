// SPDX-License-Identifier: Apache-2.0
// CallHistory: the calls of one rank of a group, as far as ranks compare them.
//
// Every rank hashes its calls into a chain, one after another; ranks whose chains are equal have made the same calls. A
// rank that waits for long sends the signatures of its last calls to those it waits for, and whoever finds the first
// that differs from its own says which it was. A rank that is behind keeps what it was sent until it has caught up.
//
// Threading: one thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "comm/engine/call.h"

namespace agspeed::comm {

/// One call of a rank, as others compare it.
struct HistoryEntry {
  uint64_t sequence = 0;  ///< counts from 1; 0: no entry
  uint64_t chain = 0;     ///< hash of all calls up to this one
  CallSignature signature;
};

/// Some call and those before it, the latest first.
using RecentCalls = std::array<HistoryEntry, 8>;

class CallHistory {
 public:
  /// How many calls are kept.
  static constexpr size_t kNumEntries = 64;

  /// Of `rank` of the group of this name; both for sentences.
  CallHistory(std::string group, int rank) : group_(std::move(group)), rank_(rank) {}

  /// Appends a call. Returns: its entry, valid until kNumEntries further calls.
  const HistoryEntry& add(const CallSignature& signature);
  /// Call `sequence` and those before it, as far as they are kept.
  RecentCalls recent(uint64_t sequence) const;
  /// Takes in the calls of another rank. Returns: a sentence about the first that differs from this rank's, if there is
  /// one. What this rank has not called yet is looked at by checkRanksAhead().
  std::optional<std::string> check(int rank, const RecentCalls& calls);
  /// The same for calls of ranks that were ahead of this one.
  std::optional<std::string> checkRanksAhead();

 private:
  std::optional<std::string> findMismatch(int rank, const RecentCalls& calls) const;
  const HistoryEntry& at(uint64_t sequence) const { return entries_[sequence % kNumEntries]; }

  const std::string group_;
  const int rank_;
  uint64_t sequence_ = 0, chain_ = 0;                   ///< of the last call
  std::array<HistoryEntry, kNumEntries> entries_ = {};  ///< of sequence i at i modulo its size
  std::map<int, RecentCalls> ranksAhead_;               ///< the last ones of each rank that runs ahead
};

}  // namespace agspeed::comm

// SPDX-License-Identifier: Apache-2.0
// Chooses which algorithm runs an operation, and in what segments: a pure function of facts that all ranks share.
//
// All ranks of a group use equal plans. Ranks compare the plan's version, so two ranks with different plans get an
// error instead of a wrong result. Thread-safety: a plan is a value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/schedule/catalog.h"

namespace agspeed::comm {

/// How one operation runs.
struct Choice {
  const Algorithm* algorithm = nullptr;
  size_t segmentBytes = 0;                  ///< of a chunk; a multiple of 256
  uint32_t window = 1;                      ///< how many segments of each chunk are in flight
  std::vector<uint32_t> shares;             ///< relative sizes of the ranks' chunks; empty: not stated
  const Algorithm* hierarchical = nullptr;  ///< used instead if several ranks share each host; nullptr: none
  bool isByRule = false;                    ///< whether a PlanRule chose it; else another may fit the network better
};

/// A row that overrides the plan's own choice.
struct PlanRule {
  Collective collective = Collective::kAllReduce;
  size_t maxBytes = SIZE_MAX;  ///< the rule applies up to this size
  std::string algorithm;       ///< a name in the catalog
  size_t segmentBytes = 0;     ///< 0: the plan's value
};

/// Whether each rank owns a chunk of the buffer, so that chunks may differ in size.
bool hasChunkPerRank(Collective collective, const Algorithm& algorithm);

/// Larger buffers use Choice::hierarchical; smaller ones gain more from fewer rounds.
constexpr size_t kMaxFlatBytes = 64 * 1024;

struct Plan {
  uint32_t version = 0;
  bool isReproducible = true;         ///< only algorithms of canonical order
  size_t segmentBytes = 128 * 1024;   ///< of a chunk
  uint32_t window = 8;                ///< how many segments of each chunk are in flight
  std::vector<uint32_t> shares = {};  ///< relative chunk sizes for unequal hosts; empty: the group measures
  std::vector<PlanRule> rules = {};   ///< the first one that fits applies

  /// Chooses how an operation of `bytes` runs; `bytes` is known to all ranks, or zero. Never fails: it skips rules that
  /// name no algorithm or break isReproducible. Memory::kContiguous algorithms run on lists of chunks only if
  /// `isContiguous`.
  Choice choose(Collective collective, size_t bytes, int numRanks, bool isContiguous) const;
};

}  // namespace agspeed::comm

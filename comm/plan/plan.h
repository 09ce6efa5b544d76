// SPDX-License-Identifier: Apache-2.0
// Which algorithm runs an operation, and in what segments: a pure function of facts that all ranks share.
//
// All ranks of a group use equal plans; the version is part of what ranks compare, so two ranks with different plans
// get an error instead of a wrong result. Thread-safety: a plan is a value.
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
  uint32_t window = 1;                      ///< segments of each chunk in flight
  std::vector<uint32_t> shares;             ///< relative sizes of the ranks' chunks; empty: not stated
  const Algorithm* hierarchical = nullptr;  ///< instead, where several ranks share each host; nullptr: the same
  bool isByRule = false;                    ///< else others may do better on the network at hand
};

/// A row that overrides what the plan would choose.
struct PlanRule {
  Collective collective = Collective::kAllReduce;
  size_t maxBytes = SIZE_MAX;  ///< the rule holds up to this size
  std::string algorithm;       ///< a name in the catalog
  size_t segmentBytes = 0;     ///< 0: as the plan says
};

/// Whether each rank owns a chunk of the buffer, whose size may be its own.
bool hasChunkPerRank(Collective collective, const Algorithm& algorithm);

/// Longer buffers take Choice::hierarchical; shorter ones are better off with fewer rounds.
constexpr size_t kMaxFlatBytes = 64 * 1024;

struct Plan {
  uint32_t version = 0;
  bool isReproducible = true;         ///< only algorithms of canonical order
  size_t segmentBytes = 128 * 1024;   ///< of a chunk
  uint32_t window = 8;                ///< segments of each chunk in flight
  std::vector<uint32_t> shares = {};  ///< of ranks, where hosts are unequal; empty: the group finds out
  std::vector<PlanRule> rules = {};   ///< the first that fits holds

  /// How an operation of `bytes` runs, a size all ranks know or zero. Never fails: rules that name no algorithm, or one
  /// that is not reproducible where that is asked for, are passed over. Memory::kContiguous algorithms are chosen for
  /// lists of chunks only where `isContiguous`.
  Choice choose(Collective collective, size_t bytes, int numRanks, bool isContiguous) const;
};

}  // namespace agspeed::comm

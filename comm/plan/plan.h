// SPDX-License-Identifier: Apache-2.0
// Plan: chooses the algorithm of an operation and the size of its segments. The choice is a pure function of facts that
// all ranks know.
//
// All ranks of a group use equal plans. Ranks compare the plan's version, so two ranks with different plans get an
// error instead of a wrong result. Thread-safety: a plan is a value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/schedule/catalog.h"

namespace agspeed::comm::plan {

/// The plan's choice for one operation.
struct Choice {
  const schedule::Algorithm* algorithm = nullptr;
  size_t segmentBytes = 0;       ///< the bytes that one segment takes from each chunk; a multiple of 256
  uint32_t window = 1;           ///< the most segments of one operation that are in flight
  std::vector<uint32_t> shares;  ///< relative sizes of the ranks' chunks; empty: the plan states none
  /// The algorithm to use instead of `algorithm` if ranks share hosts and it sends fewer bytes between hosts; nullptr:
  /// there is none.
  const schedule::Algorithm* hierarchical = nullptr;
  bool isByRule = false;  ///< whether a PlanRule chose the algorithm; if not, PlanFitter may change it
};

/// A rule that overrides the plan's own choice of an algorithm.
struct PlanRule {
  schedule::Collective collective = schedule::Collective::kAllReduce;
  size_t maxBytes = SIZE_MAX;  ///< the rule applies up to this size
  std::string algorithm;       ///< name of the algorithm in the catalog
  size_t segmentBytes = 0;     ///< Choice::segmentBytes; 0: the plan's value
};

/// Returns whether each rank owns and reduces one chunk of the buffer in this algorithm. Then the chunks may have
/// different sizes.
bool hasChunkPerRank(schedule::Collective collective, const schedule::Algorithm& algorithm);

/// The longest buffer that does not use Choice::hierarchical. Buffers up to this size gain more from fewer rounds.
constexpr size_t kMaxFlatBytes = 64 * 1024;

struct Plan {
  uint32_t version = 0;
  bool isReproducible = true;         ///< whether all reductions must have the canonical order
  size_t segmentBytes = 128 * 1024;   ///< the bytes that one segment takes from each chunk
  uint32_t window = 8;                ///< the most segments of one operation that are in flight
  std::vector<uint32_t> shares = {};  ///< relative chunk sizes for unequal hosts; empty: measured by the group
  std::vector<PlanRule> rules = {};   ///< the first rule that can run applies

  /// Chooses how an operation of `bytes` runs. `bytes` is known to all ranks, or zero. The function never fails: it
  /// skips rules that name no algorithm or break isReproducible. Memory::kContiguous algorithms run on lists of chunks
  /// only if `isContiguous`.
  Choice choose(schedule::Collective collective, size_t bytes, int numRanks, bool isContiguous) const;
};

}  // namespace agspeed::comm::plan

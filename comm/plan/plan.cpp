// SPDX-License-Identifier: Apache-2.0
#include "comm/plan/plan.h"

#include <algorithm>
#include <string_view>

namespace agspeed::comm::plan {

namespace {

constexpr size_t kKiB = 1024;
/// With at most this number of ranks, it is fastest to send all data to every rank at once. With more ranks, it is
/// faster to forward partial results in several rounds.
constexpr int kFewRanks = 8;
/// If there are many ranks and each rank's chunk has at most this size, the costs per message are higher than the costs
/// per byte.
constexpr size_t kShortChunk = 8 * kKiB;
constexpr size_t kSegmentUnit = 256;  ///< bytes; segments are multiples of it

/// Returns the name of the algorithm that the plan chooses without a rule. For short buffers, the number of sequential
/// messages determines the time. For long buffers, the number of bytes does.
std::string_view nameByDefault(schedule::Collective collective, size_t bytes, int numRanks, bool isContiguous) {
  const bool isFew = numRanks <= kFewRanks;
  const bool hasShortChunks = !isFew && bytes <= static_cast<size_t>(numRanks) * kShortChunk;
  switch (collective) {
    case schedule::Collective::kAllReduce:
      if (bytes <= (isFew ? 16 * kKiB : 2 * kKiB)) return isFew ? "exchange" : "doubling";
      return hasShortChunks ? "halving" : "direct";
    case schedule::Collective::kReduce:
      if (bytes > 32 * kKiB) return "direct";
      return isFew ? "exchange" : "binomial";
    case schedule::Collective::kBroadcast: return bytes <= 32 * kKiB ? "binomial" : "direct";
    case schedule::Collective::kAllGather: return hasShortChunks && isContiguous ? "dissemination" : "direct";
    case schedule::Collective::kBarrier: return "dissemination";
    default: return "direct";
  }
}

const schedule::Algorithm* hierarchical(schedule::Collective collective, size_t bytes,
                                        const schedule::Algorithm& choice) {
  return bytes > kMaxFlatBytes && choice.name == "direct" ? findAlgorithm(collective, "hierarchical") : nullptr;
}

}  // namespace

bool hasChunkPerRank(schedule::Collective collective, const schedule::Algorithm& algorithm) {
  return isReduction(collective) && isDivisible(collective) && algorithm.name == "direct";
}

Choice Plan::choose(schedule::Collective collective, size_t bytes, int numRanks, bool isContiguous) const {
  const auto canRun = [&](const schedule::Algorithm* algorithm) {
    return algorithm && (!isReproducible || algorithm->order == schedule::Order::kCanonical) &&
           (algorithm->memory == schedule::Memory::kChunks || isDivisible(collective) || isContiguous);
  };
  Choice choice;
  choice.segmentBytes = segmentBytes;
  for (const PlanRule& rule : rules) {
    if (rule.collective != collective || bytes > rule.maxBytes) continue;
    choice.algorithm = findAlgorithm(collective, rule.algorithm);
    choice.isByRule = canRun(choice.algorithm);
    if (!choice.isByRule) continue;
    if (rule.segmentBytes > 0) choice.segmentBytes = rule.segmentBytes;
    break;
  }
  if (!choice.isByRule) {
    choice.algorithm = findAlgorithm(collective, nameByDefault(collective, bytes, numRanks, isContiguous));
    if (shares.empty()) choice.hierarchical = hierarchical(collective, bytes, *choice.algorithm);
  }
  choice.segmentBytes = std::max(choice.segmentBytes / kSegmentUnit, size_t{1}) * kSegmentUnit;
  choice.window = std::max(window, 1u);
  // Consecutive chunks of a list form one message only if they are not cut into segments.
  if (choice.algorithm->memory == schedule::Memory::kContiguous && !isDivisible(collective))
    choice.segmentBytes = SIZE_MAX / 2;
  if (hasChunkPerRank(collective, *choice.algorithm) && shares.size() == static_cast<size_t>(numRanks))
    choice.shares = shares;
  return choice;
}

}  // namespace agspeed::comm::plan

// SPDX-License-Identifier: Apache-2.0
#include "comm/plan/cost_model.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>

namespace agspeed::comm {

namespace {

constexpr int kMostCountedRanks = 32;
constexpr size_t kShortestBuffer = 256;
constexpr size_t kLongestBuffer = size_t{1} << 30;
/// A segment takes this many latencies, so that gaps between segments stay small.
constexpr double kLatenciesPerSegment = 4;
constexpr double kShortestSegment = 16 * 1024, kLongestSegment = 1024 * 1024;

size_t segmentFor(const NetworkMeasurement& network) {
  const double ideal = kLatenciesPerSegment * network.latencySeconds * network.bytesPerSecond;
  return std::bit_ceil(static_cast<size_t>(std::clamp(ideal, kShortestSegment, kLongestSegment)));
}

/// What is known of an algorithm that may be chosen.
struct Candidate {
  const Algorithm* algorithm;
  ScheduleCounts counts;
  double numPieces;
};

std::vector<Candidate> candidatesFor(Collective collective, int numRanks) {
  std::vector<Candidate> candidates;
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.collective != collective || algorithm.order != Order::kCanonical) continue;
    if (algorithm.name == "hierarchical") continue;
    const Schedule schedule = algorithm.make({collective, 0, numRanks, 0});
    if (auto counts = verify(algorithm, numRanks)) {
      candidates.push_back({&algorithm, *counts, static_cast<double>(schedule.numPieces)});
    }
  }
  return candidates;
}

const Candidate& quickest(const std::vector<Candidate>& candidates, size_t bytes, size_t segmentBytes,
                          const NetworkMeasurement& network) {
  const auto seconds = [&](const Candidate& candidate) {
    const double size = static_cast<double>(bytes);
    const double numSegments = std::ceil(size / (candidate.numPieces * static_cast<double>(segmentBytes)));
    return predictSeconds(candidate.counts, size, numSegments, network);
  };
  return *std::min_element(candidates.begin(), candidates.end(),
                           [&](const Candidate& a, const Candidate& b) { return seconds(a) < seconds(b); });
}

}  // namespace

double predictSeconds(const ScheduleCounts& counts, double bytes, double numSegments,
                      const NetworkMeasurement& network) {
  const double latency = counts.numRounds * network.latencySeconds;
  const double messages = counts.numMessages * numSegments * network.messageSeconds;
  // Rounds of one segment follow each other; with many segments only the busiest rank's bytes count.
  const double perMessage = counts.numMessages > 0 ? counts.sent / counts.numMessages : 0;
  const double inTurn = counts.numRounds * perMessage / numSegments;
  const double share = std::max({counts.sent, counts.received, inTurn});
  const double transfer = share * bytes / network.bytesPerSecond;
  const double reduction = counts.reduced * bytes / network.reducedBytesPerSecond;
  // All but one segment's reduction happens while others travel.
  const double overlapped = std::max(transfer, reduction) + std::min(transfer, reduction) / numSegments;
  return latency + messages + overlapped;
}

Plan makePlan(const NetworkMeasurement& network, int numRanks, uint32_t version) {
  Plan plan;
  plan.version = version;
  plan.segmentBytes = segmentFor(network);
  if (numRanks > kMostCountedRanks) return plan;
  for (const Collective collective : {Collective::kAllReduce, Collective::kBroadcast, Collective::kReduce}) {
    const auto candidates = candidatesFor(collective, numRanks);
    for (size_t bytes = kShortestBuffer; bytes <= kLongestBuffer; bytes *= 2) {
      const std::string name(quickest(candidates, bytes, plan.segmentBytes, network).algorithm->name);
      const bool goesOn =
          !plan.rules.empty() && plan.rules.back().collective == collective && plan.rules.back().algorithm == name;
      if (!goesOn) plan.rules.push_back({collective, bytes, name, 0});
      plan.rules.back().maxBytes = bytes == kLongestBuffer ? SIZE_MAX : bytes;
    }
  }
  return plan;
}

}  // namespace agspeed::comm

// SPDX-License-Identifier: Apache-2.0
#include "comm/plan/cost_model.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace agspeed::comm::plan {

namespace {

/// The verification of larger groups would take too long.
constexpr int kMostCountedRanks = 16;
constexpr size_t kShortestBuffer = 256;
/// The longest buffer that gets a rule. The time of longer buffers depends on bandwidth alone, and the plan's choice
/// already sends the least bytes.
constexpr size_t kLongestBuffer = 1 << 20;
/// Another algorithm replaces the plan's choice if its predicted time is less than this part of the predicted time of
/// that choice. Predictions are coarse, while the plan's choices were measured.
constexpr double kGain = 2.0 / 3;

double secondsOf(const CountedAlgorithm& counted, size_t bytes, const NetworkMeasurement& network) {
  const double size = static_cast<double>(bytes);
  const double numSegments = std::ceil(size / (counted.numChunks * static_cast<double>(Plan{}.segmentBytes)));
  return predictSeconds(counted.counts, size, numSegments, network);
}

}  // namespace

double predictSeconds(const schedule::ScheduleCounts& counts, double bytes, double numSegments,
                      const NetworkMeasurement& network) {
  const double latency = counts.numRounds * network.latencySeconds;
  const double messages = counts.numMessages * numSegments * network.messageSeconds;
  // The rounds of one segment run one after another (`sequential`). The rounds of many segments overlap, so the bytes
  // of the busiest rank determine the time.
  const double perMessage = counts.numMessages > 0 ? counts.sent / counts.numMessages : 0;
  const double sequential = counts.numRounds * perMessage / numSegments;
  const double share = std::max({counts.sent, counts.received, sequential});
  const double transfer = share * bytes / network.bytesPerSecond;
  const double reduction = counts.reduced * bytes / network.reducedBytesPerSecond;
  // Reductions of a segment overlap with the transfers of other segments, but not with its own.
  const double overlapped = std::max(transfer, reduction) + std::min(transfer, reduction) / numSegments;
  return latency + messages + overlapped;
}

std::vector<CountedAlgorithm> countAllReduces(int numRanks) {
  std::vector<CountedAlgorithm> counted;
  if (numRanks > kMostCountedRanks) return counted;
  for (const schedule::Algorithm& algorithm : schedule::algorithms()) {
    if (algorithm.collective != schedule::Collective::kAllReduce || algorithm.order != schedule::Order::kCanonical)
      continue;
    if (usesLocalGroups(algorithm)) continue;
    const schedule::Schedule schedule = algorithm.make({schedule::Collective::kAllReduce, 0, numRanks, 0});
    if (const auto counts = verify(algorithm, numRanks); counts.hasValue()) {
      counted.push_back({&algorithm, *counts, static_cast<double>(schedule.numChunks)});
    }
  }
  return counted;
}

std::vector<PlanRule> fitToNetwork(std::span<const CountedAlgorithm> counted, const NetworkMeasurement& network,
                                   int numRanks) {
  std::vector<PlanRule> rules;
  if (counted.empty()) return rules;
  for (size_t bytes = kShortestBuffer; bytes <= kLongestBuffer; bytes *= 2) {
    const auto isQuicker = [&](const CountedAlgorithm& a, const CountedAlgorithm& b) {
      return secondsOf(a, bytes, network) < secondsOf(b, bytes, network);
    };
    const schedule::Algorithm* usual =
        Plan{}.choose(schedule::Collective::kAllReduce, bytes, numRanks, false).algorithm;
    const auto quickest = std::min_element(counted.begin(), counted.end(), isQuicker);
    const auto own = std::find_if(counted.begin(), counted.end(),
                                  [&](const CountedAlgorithm& each) { return each.algorithm == usual; });
    const bool gains =
        own == counted.end() || secondsOf(*quickest, bytes, network) < kGain * secondsOf(*own, bytes, network);
    const std::string name((gains ? quickest->algorithm : usual)->name);
    if (rules.empty() || rules.back().algorithm != name)
      rules.push_back({schedule::Collective::kAllReduce, bytes, name, 0});
    rules.back().maxBytes = bytes;
  }
  return rules;
}

}  // namespace agspeed::comm::plan

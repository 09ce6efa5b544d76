// SPDX-License-Identifier: Apache-2.0
#include "comm/plan/shares.h"

#include <algorithm>
#include <cmath>

namespace agspeed::comm::plan {
namespace {

/// Measured rates vary. A host with at least kEqual of the highest rate is treated as equally fast. The rate of a
/// slower host is multiplied by kCaution. A slow host with too large a share delays all ranks, but one with too small a
/// share delays none.
constexpr double kEqual = 0.75;
constexpr double kCaution = 0.85;
constexpr double kWhole = 1 << 20;  ///< the share that would be the whole buffer
constexpr int kBisections = 60;

/// The bytes of one segment, summed over all ranks' chunks.
constexpr size_t kSegmentOfAll = 256 * 1024;
constexpr size_t kShortestSegment = 32 * 1024;
/// The segments in flight must contain the bytes that a rank sends in this number of round trips.
constexpr double kRoundTripsInFlight = 4;

}  // namespace

std::vector<uint32_t> sharesFor(std::span<const double> bytesPerSecond) {
  const size_t numRanks = bytesPerSecond.size();
  if (numRanks < 3) return {};
  const auto [least, most] = std::minmax_element(bytesPerSecond.begin(), bytesPerSecond.end());
  const bool isKnown = *least > 0 && std::isfinite(*most);
  if (!isKnown || *least >= kEqual * *most) return {};
  std::vector<double> rates;
  for (const double rate : bytesPerSecond) rates.push_back(rate >= kEqual * *most ? 1 : kCaution * rate / *most);
  const double others = static_cast<double>(numRanks) - 2;
  const auto chunkOf = [&](double rate, double seconds) { return std::max(0.0, (seconds * rate - 1) / others); };
  const auto covered = [&](double seconds) {
    double sum = 0;
    for (const double rate : rates) sum += chunkOf(rate, seconds);
    return sum;
  };
  double low = 0, high = 1 + others;  // in the time `high`, the fastest rank could own all chunks
  for (int i = 0; i < kBisections; ++i) (covered((low + high) / 2) < 1 ? low : high) = (low + high) / 2;
  std::vector<uint32_t> shares;
  for (const double rate : rates) shares.push_back(static_cast<uint32_t>(std::lround(kWhole * chunkOf(rate, high))));
  return shares;
}

size_t segmentForShares(size_t segmentBytes, uint32_t window, int numRanks, const NetworkMeasurement& network) {
  const size_t shorter = std::max(kSegmentOfAll / static_cast<size_t>(numRanks) / 256 * 256, kShortestSegment);
  const double bytesInFlight = kRoundTripsInFlight * 2 * network.latencySeconds * network.bytesPerSecond;
  const bool isTooShort = static_cast<double>(window * shorter * static_cast<size_t>(numRanks)) < bytesInFlight;
  return isTooShort ? segmentBytes : std::min(segmentBytes, shorter);
}

}  // namespace agspeed::comm::plan

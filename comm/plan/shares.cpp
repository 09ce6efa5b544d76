// SPDX-License-Identifier: Apache-2.0
#include "comm/plan/shares.h"

#include <algorithm>
#include <cmath>

namespace agspeed::comm {
namespace {

/// Measured rates scatter: hosts within this of the fastest are equal to it, slower ones are a little slower still,
/// since a slow host that gets too much holds up everybody and one that gets too little nobody.
constexpr double kEqual = 0.75;
constexpr double kCaution = 0.85;
constexpr double kWhole = 1 << 20;
constexpr int kBisections = 60;

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
  const auto pieceOf = [&](double rate, double seconds) { return std::max(0.0, (seconds * rate - 1) / others); };
  const auto covered = [&](double seconds) {
    double sum = 0;
    for (const double rate : rates) sum += pieceOf(rate, seconds);
    return sum;
  };
  double low = 0, high = 1 + others;  // at which the fastest alone could own everything
  for (int i = 0; i < kBisections; ++i) (covered((low + high) / 2) < 1 ? low : high) = (low + high) / 2;
  std::vector<uint32_t> shares;
  for (const double rate : rates) shares.push_back(static_cast<uint32_t>(std::lround(kWhole * pieceOf(rate, high))));
  return shares;
}

}  // namespace agspeed::comm

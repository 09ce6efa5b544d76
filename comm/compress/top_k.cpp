// SPDX-License-Identifier: Apache-2.0
#include "comm/compress/top_k.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <vector>

namespace agspeed::comm::compress {
namespace {

/// A magnitude's bits, shifted by this number, are its bin: the exponent and the first 3 bits of the mantissa.
constexpr int kBinShift = 20;
constexpr size_t kNumBins = size_t{1} << (31 - kBinShift);
constexpr size_t kFirstInfiniteBin = 0x7f800000 >> kBinShift;
/// Consecutive values are counted in different tables. If both had the same bin in one table, the second increment
/// would wait for the first.
constexpr size_t kNumTables = 2;

using Bins = std::array<uint32_t, kNumBins>;

uint32_t magnitudeOf(float value) { return std::bit_cast<uint32_t>(value) & 0x7fffffff; }

Bins countedBins(std::span<const float> values) {
  std::array<Bins, kNumTables> tables = {};
  for (size_t i = 0; i < values.size(); ++i) ++tables[i % kNumTables][magnitudeOf(values[i]) >> kBinShift];
  for (size_t bin = 0; bin < kNumBins; ++bin) tables[0][bin] += tables[1][bin];
  return tables[0];
}

struct Candidate {
  uint32_t magnitude;
  int32_t index;
};

bool isLarger(const Candidate& left, const Candidate& right) {
  return left.magnitude != right.magnitude ? left.magnitude > right.magnitude : left.index < right.index;
}

}  // namespace

bool selectLargest(std::span<int32_t> indices, std::span<const float> values) {
  const Bins bins = countedBins(values);
  if (std::any_of(bins.begin() + kFirstInfiniteBin, bins.end(), [](uint32_t count) { return count > 0; })) return false;
  size_t bin = kNumBins - 1, numAbove = 0;
  while (numAbove + bins[bin] < indices.size()) numAbove += bins[bin--];

  std::vector<Candidate> candidates;
  candidates.reserve(bins[bin]);
  for (size_t i = 0; i < values.size(); ++i) {
    const uint32_t magnitude = magnitudeOf(values[i]);
    if (magnitude >> kBinShift == bin) candidates.push_back({magnitude, static_cast<int32_t>(i)});
  }
  const auto last = candidates.begin() + static_cast<ptrdiff_t>(indices.size() - numAbove - 1);
  std::nth_element(candidates.begin(), last, candidates.end(), isLarger);
  const Candidate cut = *last;

  size_t numWritten = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const Candidate each = {magnitudeOf(values[i]), static_cast<int32_t>(i)};
    if (each.magnitude >= cut.magnitude && !isLarger(cut, each)) indices[numWritten++] = each.index;
  }
  return true;
}

}  // namespace agspeed::comm::compress

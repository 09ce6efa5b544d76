// SPDX-License-Identifier: Apache-2.0
#include "runtime/tune/arms/shape_table.h"

#include <algorithm>

namespace agspeed::runtime::tune {
namespace {

constexpr int32_t kMaxUncounted = 1024;  ///< steps in a row that could not be compared
constexpr size_t kMaxShapesInRun = 16;   ///< with more shapes, enough of them match by chance

}  // namespace

int32_t ShapeTable::indexOf(const std::string& shape) {
  const auto [it, isNew] = indices_.try_emplace(shape, static_cast<int32_t>(names_.size()));
  if (isNew) names_.push_back(shape);
  return it->second;
}

bool ShapeTable::isIncomparable() const { return numUncounted_ >= kMaxUncounted; }

int32_t ShapeTable::minRunSteps() const { return static_cast<int32_t>(std::min(names_.size(), kMaxShapesInRun)); }

int32_t ShapeTable::takeExtraSteps() { return names_.size() > kMaxShapesInRun ? 5 * numBlocks_++ % 16 : 0; }

void ShapeTable::addEagerPeak(int32_t shape, int64_t bytes) {
  if (bytes <= 0) return;
  const auto [it, isNew] = eagerPeaks_.try_emplace(shape, EagerPeak{0, !hasLoaded_});
  if (hasLoaded_ && it->second.isFromBeforeLoad) return;
  it->second.bytes = std::max(it->second.bytes, bytes);
}

std::map<int32_t, int64_t> ShapeTable::eagerPeaks() const {
  std::map<int32_t, int64_t> peaks;
  for (const auto& [shape, peak] : eagerPeaks_) peaks[shape] = peak.bytes;
  return peaks;
}

}  // namespace agspeed::runtime::tune

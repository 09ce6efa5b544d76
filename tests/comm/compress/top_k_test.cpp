// SPDX-License-Identifier: Apache-2.0
// Compares the selection of the largest magnitudes with a sort.
#include "comm/compress/top_k.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "runtime/base/format.h"
#include "tests/comm/compress/float_runs.h"

namespace agspeed::comm::compress {
namespace {

using Floats = std::vector<float>;
using Indices = std::vector<int32_t>;

/// Returns the selected indices; nothing if a value is not finite.
Indices selected(const Floats& values, size_t count) {
  Indices indices(count);
  if (!selectLargest(indices, values)) indices.clear();
  return indices;
}

Indices selectedBySort(const Floats& values, size_t count) {
  if (!std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); })) return {};
  Indices indices(values.size());
  std::iota(indices.begin(), indices.end(), 0);
  std::stable_sort(indices.begin(), indices.end(), [&](int32_t left, int32_t right) {
    return std::abs(values[static_cast<size_t>(left)]) > std::abs(values[static_cast<size_t>(right)]);
  });
  indices.resize(count);
  std::sort(indices.begin(), indices.end());
  return indices;
}

TEST(TopKTest, TheSelectionIsThatOfASort) {
  RandomBytes random;
  FloatRuns runs(random, DType::kF32);
  int numFinite = 0;
  for (int round = 0; round < fuzzCount(2000); ++round) {
    const size_t numElements = 1 + random.below(1500);
    const size_t count = 1 + random.below(random.below(2) == 0 ? numElements : 1 + numElements / 50);
    SCOPED_TRACE(formatText("seed {}, round {}, {} of {}", random.seed(), round, count, numElements));
    const Bytes bytes = runs.draw(numElements);
    Floats values(numElements);
    std::memcpy(values.data(), bytes.data(), bytes.size());
    const Indices found = selected(values, count);
    numFinite += found.empty() ? 0 : 1;
    ASSERT_EQ(found, selectedBySort(values, count));
  }
  EXPECT_GT(numFinite, 0);
}

TEST(TopKTest, OfEqualMagnitudesTheLowestIndicesAreSelected) {
  EXPECT_EQ(selected({1, -2, 2, -1, 2, 1}, 2), (Indices{1, 2}));
  EXPECT_EQ(selected(Floats(5, 0), 3), (Indices{0, 1, 2}));
  EXPECT_EQ(selected({1, -1}, 2), (Indices{0, 1}));
}

TEST(TopKTest, ValuesThatAreNotFiniteAreRefused) {
  for (const float value : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_TRUE(selected({1, 2, -value, 3}, 2).empty()) << value;
  }
}

}  // namespace
}  // namespace agspeed::comm::compress

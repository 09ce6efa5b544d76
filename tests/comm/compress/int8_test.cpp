// SPDX-License-Identifier: Apache-2.0
// Compares the code of 8 bits with its definition in int8.h, value by value.
#include "comm/compress/int8.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "runtime/base/format.h"
#include "tests/comm/compress/float_runs.h"

namespace agspeed::comm::compress {
namespace {

using Floats = std::vector<float>;
using Code = std::vector<uint8_t>;

constexpr uint8_t kUntouched = 0xa5;

Floats draw(FloatRuns& runs, size_t numElements) {
  const Bytes bytes = runs.draw(numElements);
  Floats values(numElements);
  if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

/// Returns the code by its definition; nothing for values that are not finite.
Code expectedCode(const Floats& values) {
  Code code;
  for (size_t at = 0; at < values.size(); at += kInt8BlockElements) {
    const size_t count = std::min(kInt8BlockElements, values.size() - at);
    float largest = 0;
    for (size_t i = at; i < at + count; ++i) {
      if (!std::isfinite(values[i])) return {};
      largest = std::max(largest, std::abs(values[i]));
    }
    const bool isZero = largest < 127 * std::numeric_limits<float>::min();
    const float scale = isZero ? 0 : largest / 127, inverse = isZero ? 0 : 127 / largest;
    const auto* bytes = reinterpret_cast<const uint8_t*>(&scale);
    code.insert(code.end(), bytes, bytes + sizeof(scale));
    for (size_t i = at; i < at + count; ++i) {
      const float scaled = values[i] * inverse;
      code.push_back(static_cast<uint8_t>(static_cast<int8_t>(std::nearbyint(scaled))));
    }
  }
  return code;
}

/// Returns the code, or nothing for values that are not finite. Checks that the bytes behind the code did not change.
Code encoded(const Floats& values) {
  Code code(int8Bytes(values.size()) + 64, kUntouched);
  const bool isFinite = encodeInt8(code.data(), values.data(), values.size());
  EXPECT_TRUE(std::all_of(code.end() - 64, code.end(), [](uint8_t byte) { return byte == kUntouched; }));
  if (!isFinite) return {};
  code.erase(code.end() - 64, code.end());
  return code;
}

TEST(Int8Test, CodesFollowTheirDefinition) {
  RandomBytes random;
  FloatRuns runs(random, DType::kF32);
  int numFinite = 0;
  for (int round = 0; round < fuzzCount(3000); ++round) {
    const size_t numElements = random.below(1200);
    SCOPED_TRACE(formatText("seed {}, round {}, {} values", random.seed(), round, numElements));
    const Floats values = draw(runs, numElements);
    const Code code = encoded(values);
    numFinite += code.empty() ? 0 : 1;
    ASSERT_EQ(code, expectedCode(values));
  }
  EXPECT_GT(numFinite, 0);
}

TEST(Int8Test, DecodedValuesAreWithinHalfAScale) {
  RandomBytes random;
  FloatRuns runs(random, DType::kF32);
  for (int round = 0; round < fuzzCount(1000); ++round) {
    const size_t numElements = random.below(1200);
    SCOPED_TRACE(formatText("seed {}, round {}, {} values", random.seed(), round, numElements));
    const Floats values = draw(runs, numElements);
    const Code code = encoded(values);
    if (code.empty()) continue;
    Floats found(numElements + 1, 7), sums(numElements, 0.25f);
    decodeInt8(found.data(), numElements, code.data(), 1);
    addInt8(sums.data(), numElements, code.data(), 0.5f);
    ASSERT_EQ(found.back(), 7);
    for (size_t i = 0; i < numElements; ++i) {
      float scale;
      std::memcpy(&scale, code.data() + i / kInt8BlockElements * (kInt8BlockElements + 4), sizeof(scale));
      const float limit = scale > 0 ? scale * 0.5001f : 127 * std::numeric_limits<float>::min();
      ASSERT_LE(std::abs(found[i] - values[i]), limit) << i;
      const auto byte = static_cast<int8_t>(code[i + (i / kInt8BlockElements + 1) * 4]);
      const float half = scale * 0.5f, product = static_cast<float>(byte) * half;
      ASSERT_EQ(sums[i], 0.25f + product) << i;
    }
  }
}

TEST(Int8Test, ValuesThatAreNotFiniteAreRefused) {
  for (const float value : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
    for (const size_t at : {size_t{0}, size_t{255}, size_t{256}, size_t{600}}) {
      Floats values(601, 1);
      values[at] = value;
      EXPECT_TRUE(encoded(values).empty()) << value << " at " << at;
    }
  }
}

TEST(Int8Test, TheDocumentedExampleIsTrue) {
  const Code code = encoded({1, -0.5f, 0.002f});
  Floats found(3);
  decodeInt8(found.data(), 3, code.data(), 1);
  EXPECT_EQ(std::vector<int8_t>(code.begin() + 4, code.end()), (std::vector<int8_t>{127, -64, 0}));
  EXPECT_EQ(found, (Floats{1, -64 * (1.0f / 127), 0}));
}

}  // namespace
}  // namespace agspeed::comm::compress

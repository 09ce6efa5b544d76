// SPDX-License-Identifier: Apache-2.0
// Encodes and decodes runs of many kinds, and decodes damaged codes.
#include "comm/compress/lossless.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <string>

#include "tests/comm/compress/float_runs.h"

namespace agspeed::comm::compress {
namespace {

constexpr std::array kTypes = {DType::kF32, DType::kF16, DType::kBF16};
constexpr std::byte kGuard{0xa5};
constexpr size_t kGuardBytes = 64;

Bytes encoded(const Bytes& values, DType dtype) {
  const size_t numElements = values.size() / sizeInBytes(dtype);
  Bytes code(maxLosslessBytes(numElements, dtype));
  code.resize(encodeLossless(code, values.data(), numElements, dtype));
  return code;
}

/// Decodes into memory between two guards, and checks that these did not change.
StatusOr<Bytes> decoded(const Bytes& code, size_t numElements, DType dtype) {
  const size_t size = numElements * sizeInBytes(dtype);
  Bytes memory(size + 2 * kGuardBytes, kGuard);
  const Status status = decodeLossless(memory.data() + kGuardBytes, numElements, dtype, code);
  const auto isGuard = [](std::byte byte) { return byte == kGuard; };
  EXPECT_TRUE(std::all_of(memory.begin(), memory.begin() + kGuardBytes, isGuard));
  EXPECT_TRUE(std::all_of(memory.end() - kGuardBytes, memory.end(), isGuard));
  AG_RETURN_IF_ERROR(status);
  return Bytes(memory.begin() + kGuardBytes, memory.end() - kGuardBytes);
}

/// Tests of every type that has a code.
class LosslessTypeTest : public testing::TestWithParam<DType> {
 protected:
  /// Encodes and decodes a run, and compares the bits.
  void check(const Bytes& run) {
    const size_t numElements = run.size() / sizeInBytes(GetParam());
    const StatusOr<Bytes> found = decoded(encoded(run, GetParam()), numElements, GetParam());
    ASSERT_TRUE(found.hasValue()) << found.status().message();
    ASSERT_TRUE(*found == run);
  }

  RandomBytes random_;
  FloatRuns runs_{random_, GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Types, LosslessTypeTest, testing::ValuesIn(kTypes),
                         [](const auto& info) { return std::string(toString(info.param)); });

TEST_P(LosslessTypeTest, RandomRunsHaveEqualBits) {
  for (int round = 0; round < fuzzCount(2000); ++round) {
    const size_t numElements = random_.below(random_.below(4) == 0 ? 5001 : 800);
    SCOPED_TRACE(formatText("seed {}, round {}, {} values", random_.seed(), round, numElements));
    ASSERT_NO_FATAL_FAILURE(check(runs_.draw(numElements)));
  }
}

TEST_P(LosslessTypeTest, RunsOfEveryLengthHaveEqualBits) {
  for (size_t numElements = 0; numElements <= 5000; ++numElements) {
    SCOPED_TRACE(formatText("seed {}, {} values", random_.seed(), numElements));
    ASSERT_NO_FATAL_FAILURE(check(runs_.draw(numElements)));
  }
}

TEST(LosslessTest, DamagedCodesFailOrDecodeWithinTheirTarget) {
  RandomBytes random;
  std::array runs = {FloatRuns(random, kTypes[0]), FloatRuns(random, kTypes[1]), FloatRuns(random, kTypes[2])};
  int numRefused = 0;
  for (int round = 0; round < fuzzCount(3000); ++round) {
    const size_t type = random.below(kTypes.size());
    const DType dtype = kTypes[type];
    const size_t numElements = 256 + random.below(1000);
    SCOPED_TRACE(formatText("seed {}, round {}, {} x {}", random.seed(), round, numElements, toString(dtype)));
    const Bytes code = random.spoil(encoded(runs[type].draw(numElements), dtype));
    numRefused += decoded(code, numElements, dtype).hasValue() ? 0 : 1;
    (void)decoded(random.bytes(random.below(2000)), numElements, dtype);
  }
  EXPECT_GT(numRefused, 0);
}

TEST(LosslessTest, EveryShorterOrLongerCodeIsRefused) {
  RandomBytes random;
  for (const DType dtype : kTypes) {
    const Bytes code = encoded(FloatRuns(random, dtype).draw(600), dtype);
    for (size_t size = 0; size < code.size(); ++size) {
      const Bytes part(code.begin(), code.begin() + static_cast<ptrdiff_t>(size));
      ASSERT_FALSE(decoded(part, 600, dtype).hasValue()) << "seed " << random.seed() << ", " << size << " bytes";
    }
    Bytes longer = code;
    longer.push_back({});
    EXPECT_FALSE(decoded(longer, 600, dtype).hasValue());
    EXPECT_FALSE(decoded(code, 599, dtype).hasValue());
  }
}

TEST(LosslessTest, TheRoomIsNotExceeded) {
  RandomBytes random;
  for (const DType dtype : kTypes) {
    const Bytes run = FloatRuns(random, dtype).draw(1100);
    const Bytes code = encoded(run, dtype);
    for (size_t room = 0; room <= code.size() + 1; room += 1 + random.below(20)) {
      Bytes memory(room + kGuardBytes, kGuard);
      const size_t size = encodeLossless(std::span(memory).first(room), run.data(), 1100, dtype);
      ASSERT_EQ(size, room >= code.size() ? code.size() : 0) << "seed " << random.seed() << ", room " << room;
      const auto guard = memory.end() - kGuardBytes;
      ASSERT_TRUE(std::all_of(guard, memory.end(), [](std::byte byte) { return byte == kGuard; }));
    }
  }
}

TEST(LosslessTest, TheFailureNamesTheRun) {
  EXPECT_EQ(decodeLossless(nullptr, 3, DType::kF16, {}).message(),
            "0 bytes are not the lossless code of 3 values of type f16");
}

/// The bits of values that look like gradients: normal, with scales that vary from row to row.
Bytes gradients(size_t numElements, DType dtype, uint32_t mask) {
  Bytes values;
  uint32_t state = 1;
  const auto uniform = [&] {
    return static_cast<float>((state = state * 1664525u + 1013904223u) >> 8) * 0x1p-24f - 0.5f;
  };
  for (size_t i = 0; i < numElements; ++i) {
    const float value =
        (uniform() + uniform() + uniform() + uniform()) * std::ldexp(1.0f, -static_cast<int>(i / 4096 % 9));
    const uint32_t bits = std::bit_cast<uint32_t>(value) & mask;
    const auto* from = reinterpret_cast<const std::byte*>(&bits) + (dtype == DType::kF32 ? 0 : 2);
    values.insert(values.end(), from, from + sizeInBytes(dtype));
  }
  return values;
}

double ratioOf(const Bytes& values, DType dtype) {
  return static_cast<double>(values.size()) / static_cast<double>(encoded(values, dtype).size());
}

TEST(LosslessTest, GradientsBecomeSmaller) {
  EXPECT_GT(ratioOf(gradients(100000, DType::kF32, 0xffffffff), DType::kF32), 1.16);
  EXPECT_GT(ratioOf(gradients(100000, DType::kBF16, 0xffffffff), DType::kBF16), 1.38);
  EXPECT_GT(ratioOf(gradients(100000, DType::kF32, 0xffff0000), DType::kF32), 2.7);
  EXPECT_GT(ratioOf(gradients(100000, DType::kF32, 0xffffe000), DType::kF32), 1.6);
}

TEST(LosslessTest, ZerosTakeAByteForEachBlock) {
  EXPECT_EQ(encoded(Bytes(2560 * 4), DType::kF32).size(), 10u);
  EXPECT_EQ(encoded(Bytes(2560 * 2), DType::kBF16).size(), 10u);
}

TEST(LosslessTest, RandomBitsGrowByAByteForEachBlock) {
  RandomBytes random;
  EXPECT_EQ(encoded(random.bytes(2560 * 4), DType::kF32).size(), 2560u * 4 + 10);
}

TEST(LosslessTest, TheEstimateIsCloseToTheRatio) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Bytes values = gradients(100000, dtype, 0xffffffff);
    EXPECT_NEAR(estimateLosslessRatio(values.data(), 100000, dtype), ratioOf(values, dtype), 0.05);
  }
  EXPECT_EQ(estimateLosslessRatio(nullptr, 100, DType::kF32), 1);
}

/// FNV-1a, https://datatracker.ietf.org/doc/html/draft-eastlake-fnv
uint64_t hashOf(const Bytes& bytes) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const std::byte byte : bytes) hash = (hash ^ static_cast<uint64_t>(byte)) * 0x100000001b3;
  return hash;
}

TEST(LosslessTest, AllProcessorsWriteTheSameBytes) {
  EXPECT_EQ(hashOf(encoded(gradients(10000, DType::kF32, 0xffffffff), DType::kF32)), 2846575499067655162u);
  EXPECT_EQ(hashOf(encoded(gradients(10000, DType::kBF16, 0xffffffff), DType::kBF16)), 8030803345910234492u);
}

/// The example of lossless_format.md.
TEST(LosslessTest, TheDocumentedExampleIsTrue) {
  Bytes values;
  for (int i = 0; i < 257; ++i) {
    const uint16_t bits = i == 3 ? 0x0080 : i % 2 == 0 ? 0x3f80 : 0xbf00;
    const auto* from = reinterpret_cast<const std::byte*>(&bits);
    values.insert(values.end(), from, from + 2);
  }
  Bytes expected;
  const auto add = [&](int byte) { expected.push_back(static_cast<std::byte>(byte)); };
  add(0x02), add(0x7f), add(0x01);
  for (int i = 0; i < 256; ++i) add(i == 3 || i % 2 == 0 ? 0x00 : 0x80);
  for (int i = 0; i < 64; ++i) add(i == 3 ? 0x57 : i % 2 == 0 ? 0x00 : 0x55);
  add(0x01);
  add(0x80), add(0x3f);
  EXPECT_EQ(encoded(values, DType::kBF16), expected);
}

}  // namespace
}  // namespace agspeed::comm::compress

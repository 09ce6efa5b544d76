// SPDX-License-Identifier: Apache-2.0
// Sums whose partial results are rounded once per level, against a loop that rounds at the same places.
#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <cstring>

#include "tests/comm/collective/cases.h"

namespace agspeed::comm::collective {
namespace {

/// A sum of bf16 values in f32 while it is computed, and the host of its ranks; 0: of several hosts.
struct PartialSum {
  std::vector<float> values;
  uint32_t host = 0;
  bool isOfOneRank = true;
};

float roundedToBf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return std::bit_cast<float>((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u);
}

/// The sum of all ranks' contributions, rounded once per level.
std::vector<float> sumRoundedPerLevel(const Case& test) {
  const auto leaf = [&](int rank) {
    PartialSum sum{{}, test.loopback.hosts[static_cast<size_t>(rank)]};
    const Bytes bytes = contribution(test, rank, 0, test.counts[0]);
    for (size_t i = 0; i < test.counts[0]; ++i) {
      uint16_t bits = 0;
      std::memcpy(&bits, bytes.data() + 2 * i, 2);
      sum.values.push_back(std::bit_cast<float>(uint32_t{bits} << 16));
    }
    return sum;
  };
  const auto round = [](PartialSum& sum) {
    if (sum.host == 0 || sum.isOfOneRank) return;
    for (float& value : sum.values) value = roundedToBf16(value);
  };
  PartialSum sum = reduce::foldCanonically(test.numRanks, leaf, [&](PartialSum left, PartialSum right) {
    const bool isOfOneHost = left.host != 0 && left.host == right.host;
    if (!isOfOneHost) {
      round(left);
      round(right);
    }
    for (size_t i = 0; i < left.values.size(); ++i) left.values[i] += right.values[i];
    return PartialSum{std::move(left.values), isOfOneHost ? left.host : 0, false};
  });
  for (float& value : sum.values) value = roundedToBf16(value);
  return sum.values;
}

TEST(RoundedSums, AreRoundedOncePerLevel) {
  for (const std::vector<uint32_t>& hosts :
       {std::vector<uint32_t>{1, 1, 2, 2}, {1, 1, 1, 2, 2, 2, 2}, {1, 1, 1, 1, 1, 2, 3, 3}}) {
    Case test{findAlgorithm(schedule::Collective::kAllReduce, "hierarchical-rounded"),
              static_cast<int>(hosts.size()),
              0,
              DType::kBF16,
              reduce::ReduceOp::kSum,
              {40000},
              4096,
              true,
              {.hosts = hosts}};
    GroupOptions options;
    options.plan = planWith(schedule::Collective::kAllReduce, "hierarchical-rounded", test.segmentBytes);
    Ranks ranks(test.numRanks, options, test.loopback);
    const std::vector<float> expected = sumRoundedPerLevel(test);
    std::atomic<int> numWrong = 0;
    ranks.run([&](int rank, Communicator& group) {
      applyHostStats(group);
      Buffer buffer(expectationOf(test, rank).input);
      const engine::CollectiveCall call = {.collective = schedule::Collective::kAllReduce,
                                           .dtype = DType::kBF16,
                                           .input = buffer.chunks,
                                           .output = buffer.chunks,
                                           .op = reduce::ReduceOp::kSum,
                                           .isContiguous = true};
      if (!group.start(call)->wait().isOk()) ++numWrong;
      for (size_t i = 0; i < expected.size(); ++i) {
        const auto bits = static_cast<uint16_t>(std::bit_cast<uint32_t>(expected[i]) >> 16);
        numWrong += std::memcmp(buffer.bytes.data() + 2 * i, &bits, 2) != 0;
      }
    });
    EXPECT_EQ(numWrong, 0) << test.text();
  }
}

}  // namespace
}  // namespace agspeed::comm::collective

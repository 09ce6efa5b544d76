// SPDX-License-Identifier: Apache-2.0
// Conversions between all dtypes; rounding of bf16 and f16 for every bit pattern.
#include <gtest/gtest.h>

#include <bit>

#include "kernel_test_support.h"

namespace agspeed::compiler::testing {
namespace {

const std::vector<DType> kDTypes = {DType::kBool, DType::kU8,  DType::kI8,   DType::kI16, DType::kI32,
                                    DType::kI64,  DType::kF16, DType::kBF16, DType::kF32, DType::kF64};

Cluster makeCast(DType from, DType to) {
  ClusterBuilder builder(0);
  builder.store(builder.cast(builder.load(from), to));
  return builder.cluster();
}

TEST(Cast, EveryPairOfDTypes) {
  std::vector<Cluster> clusters;
  for (DType from : kDTypes) {
    for (DType to : kDTypes) clusters.push_back(makeCast(from, to));
  }
  auto library = build(clusters);
  ASSERT_TRUE(library);
  for (size_t i = 0; i < clusters.size(); ++i) {
    Problem actual(clusters[i], {}, 2000, 7);
    Problem expected = actual;
    actual.run(library->kernel(i));
    expected.interpret();
    EXPECT_EQ(compare(actual, expected, {}), "") << "seed 7";
  }
}

class NarrowFloat : public ::testing::TestWithParam<DType> {};

TEST_P(NarrowFloat, EveryBitPatternSurvivesWideningAndNarrowing) {
  ClusterBuilder builder(0);
  builder.store(builder.cast(builder.cast(builder.load(GetParam()), DType::kF32), GetParam()));
  auto library = build({builder.cluster()});
  ASSERT_TRUE(library);
  Problem problem(builder.cluster(), {}, 65536, 1);
  for (int bits = 0; bits < 65536; ++bits) reinterpret_cast<uint16_t*>(problem.bytes(0).data())[bits] = bits;
  Problem expected = problem;
  problem.run(library->kernel(0));
  expected.interpret();
  EXPECT_EQ(compare(problem, expected, {}), "");
}

// Every bit pattern of the high half, with low halves below, at and above ties.
TEST_P(NarrowFloat, RoundsToNearestEven) {
  Cluster cluster = makeCast(DType::kF32, GetParam());
  auto library = build({cluster});
  ASSERT_TRUE(library);
  for (uint32_t low : {0x0000u, 0x0001u, 0x0fffu, 0x1000u, 0x1001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
    Problem problem(cluster, {}, 65536, 1);
    for (uint32_t high = 0; high < 65536; ++high) {
      reinterpret_cast<uint32_t*>(problem.bytes(0).data())[high] = high << 16 | low;
    }
    Problem expected = problem;
    problem.run(library->kernel(0));
    expected.interpret();
    EXPECT_EQ(compare(problem, expected, {}), "") << "low half " << low;
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, NarrowFloat, ::testing::Values(DType::kBF16, DType::kF16),
                         [](const auto& info) { return std::string(toString(info.param)); });

}  // namespace
}  // namespace agspeed::compiler::testing

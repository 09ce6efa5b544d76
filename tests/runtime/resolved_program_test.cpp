// SPDX-License-Identifier: Apache-2.0
#include "runtime/resolved_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/runtime/program_builder.h"

namespace agspeed::runtime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Resolve, EvaluatesEverySizeForTheSymbols) {
  ProgramBuilder b;
  const SymExpr n = SymExpr::symbol(0);
  const ValueId x = b.input(contiguous(DType::kF64, {n, SymExpr(3)}));
  const ValueId a = b.arena(contiguous(DType::kBF16, {n}), n * 8);
  const ValueId s = b.scalarInput(n + 1);
  b.program.arenaBytes = n * 16;
  b.kernel(0, {x, a}, {n, n * 2}, n, SymExpr(0));
  auto resolved = resolve(b.program, {5});
  ASSERT_TRUE(resolved.hasValue()) << resolved.status().message();
  EXPECT_THAT((*resolved)->layouts[x].sizes, ElementsAre(5, 3));
  EXPECT_THAT((*resolved)->layouts[x].strides, ElementsAre(3, 1));
  EXPECT_EQ((*resolved)->layouts[x].bytes, 5 * 3 * 8);
  EXPECT_EQ((*resolved)->arenaOffsets[a], 40);
  EXPECT_EQ((*resolved)->scalars[s], 6);
  EXPECT_THAT((*resolved)->integers, ElementsAre(5, 10));
  EXPECT_EQ((*resolved)->launches[0].extent, 5);
  EXPECT_EQ((*resolved)->launches[0].grain, 1) << "a grain is at least 1";
}

TEST(Resolve, BytesFollowTheStridesNotTheElementCount) {
  ProgramBuilder b;
  b.input({DType::kF32, {SymExpr(2), SymExpr(3)}, {SymExpr(10), SymExpr(2)}});
  b.input({DType::kF32, {SymExpr(0), SymExpr(3)}, {SymExpr(3), SymExpr(1)}});
  auto resolved = resolve(b.program, {});
  ASSERT_TRUE(resolved.hasValue());
  EXPECT_EQ((*resolved)->layouts[0].bytes, (10 + 2 * 2 + 1) * 4);
  EXPECT_EQ((*resolved)->layouts[1].bytes, 0);
}

TEST(Resolve, OffsetsAreBytesOfTheOperandsDtype) {
  ProgramBuilder b;
  const SymExpr n = SymExpr::symbol(0);
  const ValueId x = b.input(contiguous(DType::kF64, {n}));
  const ValueId y = b.fresh(contiguous(DType::kBF16, {n}));
  const ValueId v = b.view(x, contiguous(DType::kF64, {n - 2}), n - 3);
  b.kernel(0, {x, y}, {}, n);
  std::get<KernelCall>(b.program.instructions[1].op).offsets = {n - 1, SymExpr(2)};
  auto resolved = resolve(b.program, {5});
  ASSERT_TRUE(resolved.hasValue()) << resolved.status().message();
  EXPECT_EQ((*resolved)->viewOffsets[v], 2);
  EXPECT_THAT((*resolved)->operandOffsets, ElementsAre(32, 4));
}

TEST(Resolve, RejectsAPartOutsideOfItsValue) {
  ProgramBuilder b;
  const SymExpr n = SymExpr::symbol(0);
  const ValueId x = b.input(contiguous(DType::kF32, {SymExpr(8)}));
  b.program.bounds = {{x, n - 4, n}};
  EXPECT_TRUE(resolve(b.program, {4}).hasValue());
  EXPECT_TRUE(resolve(b.program, {8}).hasValue());
  EXPECT_THAT(resolve(b.program, {9}).status().message(), HasSubstr("from element 5 to 9 leaves the 8 elements"));
  EXPECT_THAT(resolve(b.program, {3}).status().message(), HasSubstr("from element -1 to 3 leaves the 8 elements"));
}

TEST(Resolve, RejectsAnArenaValueThatDoesNotFit) {
  ProgramBuilder b;
  b.arena(contiguous(DType::kF32, {SymExpr(16)}), SymExpr(8));
  b.program.arenaBytes = SymExpr(64);
  EXPECT_THAT(resolve(b.program, {}).status().message(), HasSubstr("value v0: an arena value of 64 bytes at offset 8"));
}

TEST(Resolve, RejectsAnUnboundSymbolAndANegativeSize) {
  ProgramBuilder b;
  b.input(contiguous(DType::kF32, {SymExpr::symbol(0) - 4}));
  EXPECT_FALSE(resolve(b.program, {}).hasValue());
  EXPECT_THAT(resolve(b.program, {1}).status().message(), HasSubstr("-3"));
}

}  // namespace
}  // namespace agspeed::runtime

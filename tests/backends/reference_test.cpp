// SPDX-License-Identifier: Apache-2.0
// The oracle's own arithmetic, against values written by hand (computed by PyTorch on CPU).
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "backends/reference/scalar_op.h"

namespace agspeed::backends::reference {
namespace {

using compiler::PointwiseOp;

double f32(PointwiseOp op, std::initializer_list<double> inputs) {
  std::vector<Scalar> scalars;
  for (double input : inputs) scalars.push_back({.real = input});
  return applyScalar(op, DType::kF32, DType::kF32, scalars).real;
}

int64_t integer(PointwiseOp op, DType dtype, std::initializer_list<int64_t> inputs) {
  std::vector<Scalar> scalars;
  for (int64_t input : inputs) scalars.push_back({.integer = input});
  return applyScalar(op, dtype, dtype, scalars).integer;
}

TEST(ScalarOp, RemainderHasTheDivisorsSign) {
  EXPECT_EQ(f32(PointwiseOp::kRemainder, {-7, 3}), 2);
  EXPECT_EQ(f32(PointwiseOp::kRemainder, {7, -3}), -2);
  EXPECT_EQ(f32(PointwiseOp::kFmod, {-7, 3}), -1);
  EXPECT_EQ(integer(PointwiseOp::kRemainder, DType::kI64, {-7, 3}), 2);
}

TEST(ScalarOp, FloorDivisionFloors) {
  EXPECT_EQ(f32(PointwiseOp::kFloorDiv, {-7, 2}), -4);
  EXPECT_EQ(f32(PointwiseOp::kFloorDiv, {1, 0}), INFINITY);
  EXPECT_EQ(integer(PointwiseOp::kFloorDiv, DType::kI32, {-7, 2}), -4);
}

TEST(ScalarOp, ExtremaPropagateNan) {
  EXPECT_TRUE(std::isnan(f32(PointwiseOp::kMaximum, {NAN, 1})));
  EXPECT_TRUE(std::isnan(f32(PointwiseOp::kMinimum, {1, NAN})));
  EXPECT_TRUE(std::isnan(f32(PointwiseOp::kRelu, {NAN})));
}

TEST(ScalarOp, RoundsHalfToEven) {
  EXPECT_EQ(f32(PointwiseOp::kRound, {2.5}), 2);
  EXPECT_EQ(f32(PointwiseOp::kRound, {3.5}), 4);
  EXPECT_EQ(f32(PointwiseOp::kRound, {-0.5}), 0);
}

TEST(ScalarOp, IntegersWrapAtTheirWidth) {
  EXPECT_EQ(integer(PointwiseOp::kAdd, DType::kU8, {250, 10}), 4);
  EXPECT_EQ(integer(PointwiseOp::kMul, DType::kI8, {100, 2}), -56);
  EXPECT_EQ(integer(PointwiseOp::kAbs, DType::kI8, {-128}), -128);
}

TEST(ScalarOp, CastsFollowC) {
  EXPECT_EQ(convertScalar({.real = -2.9}, DType::kF32, DType::kI32).integer, -2);
  EXPECT_EQ(convertScalar({.real = NAN}, DType::kF32, DType::kBool).integer, 1);
  EXPECT_EQ(convertScalar({.integer = 257}, DType::kI64, DType::kU8).integer, 1);
  EXPECT_EQ(convertScalar({.real = 0.1}, DType::kF64, DType::kBF16).real, 0.10009765625);
}

TEST(ScalarOp, SmallFloatsSurviveARoundTripThroughMemory) {
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    for (double value : {0.0, 1.0, -2.5, 6e-5, 65280.0, -0x1p-20, double(INFINITY)}) {
      uint16_t storage = 0;
      storeScalar(&storage, dtype, 0, convertScalar({.real = value}, DType::kF64, dtype));
      EXPECT_EQ(loadScalar(&storage, dtype, 0).real, convertScalar({.real = value}, DType::kF64, dtype).real)
          << value << " as " << toString(dtype);
    }
  }
}

TEST(ScalarOp, ReductionsStartAtTheirIdentity) {
  EXPECT_EQ(reductionIdentity(PointwiseOp::kReduceSum, DType::kF32).real, 0);
  EXPECT_EQ(reductionIdentity(PointwiseOp::kReduceProd, DType::kI64).integer, 1);
  EXPECT_EQ(reductionIdentity(PointwiseOp::kReduceMax, DType::kF32).real, -INFINITY);
  EXPECT_EQ(combineScalars(PointwiseOp::kReduceMin, DType::kI64, {.integer = 3}, {.integer = -4}).integer, -4);
}

}  // namespace
}  // namespace agspeed::backends::reference

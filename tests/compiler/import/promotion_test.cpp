// SPDX-License-Identifier: Apache-2.0
// Expected values come from torch.result_type and torch.tensor(x).to(dtype).
#include "compiler/import/promotion.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace agspeed::compiler {
namespace {

using Rank = PromotionInput::Rank;

DType promoted(std::vector<PromotionInput> inputs) { return *resultType(inputs); }

TEST(Promotion, TensorsOutrankNumbersOfTheSameCategory) {
  EXPECT_EQ(promoted({{DType::kBF16}, {DType::kF64, Rank::kNumber}}), DType::kBF16);
  EXPECT_EQ(promoted({{DType::kF32}, {DType::kF64, Rank::kZeroDim}}), DType::kF32);
  EXPECT_EQ(promoted({{DType::kI32}, {DType::kI64, Rank::kNumber}}), DType::kI32);
}

TEST(Promotion, AHigherCategoryWinsFromAnyRank) {
  EXPECT_EQ(promoted({{DType::kI64}, {DType::kF64, Rank::kNumber}}), DType::kF32);
  EXPECT_EQ(promoted({{DType::kI64}, {DType::kF16, Rank::kZeroDim}}), DType::kF16);
  EXPECT_EQ(promoted({{DType::kBool}, {DType::kI64, Rank::kNumber}}), DType::kI64);
}

TEST(Promotion, MixedWidthsAndSignsWiden) {
  EXPECT_EQ(*promote(DType::kU8, DType::kI8), DType::kI16);
  EXPECT_EQ(*promote(DType::kU8, DType::kI32), DType::kI32);
  EXPECT_EQ(*promote(DType::kF16, DType::kBF16), DType::kF32);
  EXPECT_FALSE(promote(DType::kF32, DType::kC64).has_value());
}

TEST(Promotion, RoundsNumbersToWhatADtypeHolds) {
  EXPECT_EQ(roundTo(DType::kBF16, 0.1), 0.10009765625);
  EXPECT_EQ(roundTo(DType::kF16, 0.1), 0.0999755859375);
  EXPECT_EQ(roundTo(DType::kF16, 70000.0), INFINITY);
  EXPECT_EQ(roundTo(DType::kF16, 1e-8), 0.0);
  EXPECT_EQ(roundTo(DType::kF32, 0.1), static_cast<double>(0.1f));
  EXPECT_EQ(roundTo(DType::kF64, 0.1), 0.1);
  EXPECT_EQ(roundTo(DType::kBF16, -INFINITY), -INFINITY);
}

}  // namespace
}  // namespace agspeed::compiler

// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "runtime/base/dtype.h"

namespace agspeed {
namespace {

constexpr DType kAll[] = {DType::kBool, DType::kU8,   DType::kI8,  DType::kI16, DType::kI32, DType::kI64,
                          DType::kF16,  DType::kBF16, DType::kF32, DType::kF64, DType::kC64, DType::kC128};

TEST(DType, NamesReadBackForEveryType) {
  for (DType dtype : kAll) EXPECT_EQ(dtypeFromString(toString(dtype)), dtype) << toString(dtype);
}

TEST(DType, UnknownNamesAreNotTypes) {
  for (const char* text : {"", "f", "F32", "float32", "f32 ", "u16"}) EXPECT_FALSE(dtypeFromString(text)) << text;
}

TEST(DType, SizesFollowTheNames) {
  EXPECT_EQ(sizeInBytes(DType::kBool), 1u);
  EXPECT_EQ(sizeInBytes(DType::kBF16), 2u);
  EXPECT_EQ(sizeInBytes(DType::kF32), 4u);
  EXPECT_EQ(sizeInBytes(DType::kI64), 8u);
  EXPECT_EQ(sizeInBytes(DType::kC128), 16u);
}

TEST(DType, NoTypeIsBothFloatAndInteger) {
  for (DType dtype : kAll) EXPECT_FALSE(isFloat(dtype) && isInteger(dtype)) << toString(dtype);
  EXPECT_FALSE(isInteger(DType::kBool));
  EXPECT_FALSE(isFloat(DType::kC64));
  EXPECT_TRUE(isFloat(DType::kBF16));
  EXPECT_TRUE(isInteger(DType::kU8));
}

}  // namespace
}  // namespace agspeed

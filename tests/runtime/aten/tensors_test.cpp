// SPDX-License-Identifier: Apache-2.0
#include "runtime/aten/tensors.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace agspeed::runtime::aten {
namespace {

TensorLayout layout(DType dtype, std::vector<int64_t> sizes, std::vector<int64_t> strides, int64_t bytes) {
  return {dtype, std::move(sizes), std::move(strides), bytes};
}

TEST(Tensors, EveryTypeMapsThereAndBack) {
  for (int i = 0; i <= static_cast<int>(DType::kC128); ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(dtypeOf(scalarTypeOf(dtype)), dtype);
    EXPECT_EQ(c10::elementSize(scalarTypeOf(dtype)), sizeInBytes(dtype));
  }
  EXPECT_EQ(dtypeOf(c10::ScalarType::QInt8), std::nullopt);
}

TEST(Tensors, WrappedMemoryIsReadInPlace) {
  alignas(64) float data[6] = {0, 1, 2, 3, 4, 5};
  at::Tensor tensor = wrapMemory(layout(DType::kF32, {3, 2}, {1, 3}, 24), data);
  EXPECT_EQ(tensor.const_data_ptr(), data);
  EXPECT_TRUE(at::equal(tensor, at::arange(6, at::kFloat).view({2, 3}).t()));
}

TEST(Tensors, AViewSharesMemoryAtItsOffset) {
  const at::Tensor source = at::arange(24, at::kFloat).view({4, 6}).slice(1, 1);
  const at::Tensor view = viewOf(source, {DType::kF32, {2, 3}, {6, 2}, 0}, 6);
  EXPECT_TRUE(at::equal(view, source.slice(0, 1, 3).slice(1, 0, 5, 2)));
  EXPECT_EQ(view.storage_offset(), 7);
  view.zero_();
  EXPECT_EQ(source.sum().item<float>(), 276 - 36 - (7 + 9 + 11 + 13 + 15 + 17));
}

TEST(Tensors, MatchesIgnoresStridesThatAreNeverWalked) {
  const TensorLayout wanted = layout(DType::kF32, {4, 1}, {1, 1}, 16);
  EXPECT_TRUE(matches(at::empty_strided({4, 1}, {1, 77}), wanted));
  EXPECT_FALSE(matches(at::empty_strided({4, 1}, {2, 1}), wanted));
  EXPECT_FALSE(matches(at::empty({4, 1}, at::kDouble), wanted));
  EXPECT_FALSE(matches(at::empty({4}), wanted));
  EXPECT_FALSE(matches(at::Tensor(), wanted));
  EXPECT_TRUE(matches(at::empty_strided({0, 3}, {9, 9}), layout(DType::kF32, {0, 3}, {3, 1}, 0)));
}

TEST(Tensors, ConjugateViewsDoNotMatchAndAreCopiedWithTheirValues) {
  const TensorLayout wanted = layout(DType::kC64, {3}, {1}, 24);
  at::Tensor tensor = at::randn({3}, at::kComplexFloat).conj();
  EXPECT_FALSE(matches(tensor, wanted));
  at::Tensor copy = copyWithLayout(tensor, wanted);
  EXPECT_TRUE(matches(copy, wanted));
  EXPECT_TRUE(at::equal(copy, tensor));
}

}  // namespace
}  // namespace agspeed::runtime::aten

// SPDX-License-Identifier: Apache-2.0
// ATen's type promotion, and the dtype in which ATen's CPU kernels compute.
#pragma once

#include <optional>
#include <span>

#include "runtime/base/dtype.h"

namespace agspeed::compiler {

/// The part of one argument in promotion: tensors with dimensions outrank 0-d tensors, which outrank Python numbers.
struct PromotionInput {
  enum class Rank : uint8_t { kNumber, kZeroDim, kTensor };
  DType dtype = DType::kF32;
  Rank rank = Rank::kTensor;
};

/// Smallest dtype that both convert to, as torch.promote_types. Nullopt for complex numbers.
std::optional<DType> promote(DType a, DType b);
/// As torch.result_type over all arguments. Nullopt if there are none, or for complex numbers.
std::optional<DType> resultType(std::span<const PromotionInput> inputs);
/// f32 for bf16 and f16, otherwise the dtype itself (ATen's opmath_type on CPU).
DType computeType(DType dtype);
/// `value` rounded to a value that `dtype` can hold (floats only; other dtypes do not change it).
double roundTo(DType dtype, double value);

}  // namespace agspeed::compiler

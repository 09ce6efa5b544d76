// SPDX-License-Identifier: Apache-2.0
// How a DType is stored in memory and in registers, and the conversions between dtypes.
//
//   dtype      in memory  in registers          dtype        in memory  in registers
//   bool       i8 (0/1)   i1                    f16          f16        f32
//   u8 .. i64  iN         iN                    bf16         i16        f32
//                                               f32, f64     same       same
// bf16 is converted with integer arithmetic, because the host's bf16 instructions flush denormals and results must not
// depend on the host.
#pragma once

#include "passes/kernel/value_builder.h"
#include "runtime/base/dtype.h"

namespace agspeed::compiler {

mlir::Type memoryType(mlir::MLIRContext* context, DType dtype);
mlir::Type registerType(mlir::MLIRContext* context, DType dtype);
passes::Signedness signednessOf(DType dtype);

passes::Val fromMemory(passes::Val stored, DType dtype);
/// Rounds to nearest even if the memory type is narrower; NaN stays NaN.
passes::Val toMemory(passes::Val value, DType dtype);

/// ATen's conversion between register values. A conversion to f16 or bf16 rounds even if `from` is the same dtype. A
/// float outside the range of a 32- or 64-bit integer, and NaN, becomes the smallest integer, as with the host's
/// instruction. Narrower integers take the low bits of the 32-bit result.
passes::Val castValue(passes::Val value, DType from, DType to);

}  // namespace agspeed::compiler

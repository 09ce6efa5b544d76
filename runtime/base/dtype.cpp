// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/dtype.h"

#include <array>

namespace agspeed {
namespace {

struct Row {
  DType dtype;
  std::string_view name;
  size_t bytes;
  bool isFloat;
  bool isInteger;
};

// Indexed by the enum's value.
constexpr std::array<Row, 12> kRows = {{
    {DType::kBool, "bool", 1, false, false},
    {DType::kU8, "u8", 1, false, true},
    {DType::kI8, "i8", 1, false, true},
    {DType::kI16, "i16", 2, false, true},
    {DType::kI32, "i32", 4, false, true},
    {DType::kI64, "i64", 8, false, true},
    {DType::kF16, "f16", 2, true, false},
    {DType::kBF16, "bf16", 2, true, false},
    {DType::kF32, "f32", 4, true, false},
    {DType::kF64, "f64", 8, true, false},
    {DType::kC64, "c64", 8, false, false},
    {DType::kC128, "c128", 16, false, false},
}};

const Row& rowOf(DType dtype) { return kRows[static_cast<size_t>(dtype)]; }

}  // namespace

size_t sizeInBytes(DType dtype) { return rowOf(dtype).bytes; }
std::string_view toString(DType dtype) { return rowOf(dtype).name; }
bool isFloat(DType dtype) { return rowOf(dtype).isFloat; }
bool isInteger(DType dtype) { return rowOf(dtype).isInteger; }

std::optional<DType> dtypeFromString(std::string_view text) {
  for (const Row& row : kRows) {
    if (row.name == text) return row.dtype;
  }
  return std::nullopt;
}

}  // namespace agspeed

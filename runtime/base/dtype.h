// SPDX-License-Identifier: Apache-2.0
// Element types of tensors, by the names GraphSpec and PyTorch use ("f32", "bf16", "i64", ...).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace agspeed {

enum class DType : uint8_t { kBool, kU8, kI8, kI16, kI32, kI64, kF16, kBF16, kF32, kF64, kC64, kC128 };

/// Bytes of one element.
size_t sizeInBytes(DType dtype);
/// "f32", "bf16", "bool", ...
std::string_view toString(DType dtype);
/// Inverse of toString; nullopt for any other text.
std::optional<DType> dtypeFromString(std::string_view text);
bool isFloat(DType dtype);
/// Signed or unsigned integers; bool is not one.
bool isInteger(DType dtype);

}  // namespace agspeed

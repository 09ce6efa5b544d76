// SPDX-License-Identifier: Apache-2.0
// A lossless code for floating-point numbers: the same bits in fewer bytes.
//
// The exponents of a tensor's values are close to each other, so they need fewer bits than the type gives them. The
// code stores them per block of 256 values, relative to the block's largest exponent, with the number of bits that
// makes the block shortest. Signs and mantissas are stored as they are. Bytes or bits of them that are zero in all
// values of a block are left out. lossless_format.md defines every byte, with an example.
//
// Real gradients become 1.17 times smaller in f32, and 1.41 times smaller in bf16 (benchmark case comm/coded-4). Random
// bits become larger by a factor of 1.001.
//
// All functions are pure and thread-safe, and allocate nothing. Values are aligned for their type. They use the widest
// vectors of the processor; all processors write the same bytes.
#pragma once

#include <cstddef>
#include <span>

#include "runtime/base/dtype.h"
#include "runtime/base/status.h"

namespace agspeed::comm::compress {

/// Returns whether the code exists for the type. It exists for f32, f16 and bf16.
bool hasLosslessCode(DType dtype);

/// Returns a number of bytes that encodeLossless() never exceeds.
size_t maxLosslessBytes(size_t numElements, DType dtype);

/// Encodes `numElements` values. `target` must not overlap `source`. Returns the number of bytes written. If the code
/// is larger than target.size(), returns 0, and the content of `target` is undefined. Requires: hasLosslessCode(dtype).
size_t encodeLossless(std::span<std::byte> target, const std::byte* source, size_t numElements, DType dtype);

/// Decodes `numElements` values. `target` must not overlap `code`. Fails as data loss if `code` is not the code of
/// exactly numElements values. The content of `target` is then undefined, but no byte outside of it is written.
/// Requires: hasLosslessCode(dtype).
Status decodeLossless(std::byte* target, size_t numElements, DType dtype, std::span<const std::byte> code);

/// Estimates (bytes of the values) / (bytes of the code) from a sample of blocks. Takes about a microsecond. Returns at
/// least 0.99. Requires: hasLosslessCode(dtype).
double estimateLosslessRatio(const std::byte* source, size_t numElements, DType dtype);

}  // namespace agspeed::comm::compress

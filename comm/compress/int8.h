// SPDX-License-Identifier: Apache-2.0
// A lossy code for f32 values: one signed byte per value, and one scale per block of 256 values.
//
// The code is a sequence of blocks. A block is its scale (f32, little-endian), then the bytes of its values; the last
// block may be shorter. Let m be the largest magnitude of a block. Its scale is m / 127, and a value x becomes the
// integer nearest to x * (127 / m), ties to even. Byte q decodes to q * scale, so the error of a value is at most half
// of the scale, apart from rounding. If m is below 127 times the smallest normal f32, the block decodes to zeros.
//
// Example: the block 1.0, -0.5, 0.002 has the scale 1 / 127. Its bytes are 127, -64 and 0, which decode to 1.0, -0.504
// and 0.
//
// All functions are pure and thread-safe, and allocate nothing. They use the widest vectors of the processor; all
// processors write the same bytes and decode the same values.
#pragma once

#include <cstddef>
#include <cstdint>

namespace agspeed::comm::compress {

constexpr size_t kInt8BlockElements = 256;

/// Returns the number of bytes of the code of `numElements` values.
constexpr size_t int8Bytes(size_t numElements) {
  return numElements + (numElements + kInt8BlockElements - 1) / kInt8BlockElements * sizeof(float);
}

/// Encodes values into int8Bytes(numElements) bytes. Returns false if a value is NaN or infinite; the content of
/// `target` is undefined then. `target` must not overlap `source`.
bool encodeInt8(uint8_t* target, const float* source, size_t numElements);

/// Decodes int8Bytes(numElements) bytes, and stores each value times `factor`, as q * (scale * factor).
void decodeInt8(float* target, size_t numElements, const uint8_t* code, float factor);

/// Like decodeInt8(), but adds the values to `target`.
void addInt8(float* target, size_t numElements, const uint8_t* code, float factor);

}  // namespace agspeed::comm::compress

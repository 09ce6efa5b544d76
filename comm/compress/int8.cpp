// SPDX-License-Identifier: Apache-2.0
// This file is compiled once per instruction set (foreach_target.h). The loops are plain, and the compiler vectorizes
// them for each set. CMakeLists.txt forbids it to contract a product and a sum to one instruction, because results
// would then depend on the instruction set.
#define HWY_DISABLED_TARGETS (HWY_AVX3_DL | HWY_SSE4 | HWY_SSSE3)  // these sets bring no gain here
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "comm/compress/int8.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "comm/compress/int8.h"
#include "runtime/base/instruction_set.h"

HWY_BEFORE_NAMESPACE();
namespace agspeed::comm::compress::HWY_NAMESPACE {

constexpr uint32_t kInfinityBits = 0x7f800000;
constexpr float kLargestCode = 127;
constexpr float kLeastMagnitude = kLargestCode * std::numeric_limits<float>::min();
/// 1.5 * 2^23. Adding it to a small value x rounds x to an integer. The low bits of the sum are the low byte of this
/// integer.
constexpr float kRounder = 12582912;

/// Returns the bits of the largest magnitude. The result is at least kInfinityBits if a value is NaN or infinite.
uint32_t largestMagnitude(const float* HWY_RESTRICT values, size_t count) {
  uint32_t largest = 0;
  for (size_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::bit_cast<uint32_t>(values[i]) & uint32_t{0x7fffffff});
  }
  return largest;
}

bool encode(uint8_t* HWY_RESTRICT target, const float* HWY_RESTRICT source, size_t numElements) {
  while (numElements > 0) {
    const size_t count = std::min(kInt8BlockElements, numElements);
    const uint32_t bits = largestMagnitude(source, count);
    if (bits >= kInfinityBits) return false;
    const auto largest = std::bit_cast<float>(bits);
    const bool isZero = largest < kLeastMagnitude;
    const float scale = isZero ? 0 : largest / kLargestCode;
    const float inverse = isZero ? 0 : kLargestCode / largest;
    std::memcpy(target, &scale, sizeof(scale));
    target += sizeof(scale);
    for (size_t i = 0; i < count; ++i) {
      target[i] = static_cast<uint8_t>(std::bit_cast<uint32_t>(source[i] * inverse + kRounder));
    }
    target += count, source += count, numElements -= count;
  }
  return true;
}

template <bool kAdds>
void decodeBlocks(float* HWY_RESTRICT target, size_t numElements, const uint8_t* HWY_RESTRICT code, float factor) {
  while (numElements > 0) {
    const size_t count = std::min(kInt8BlockElements, numElements);
    float scale;
    std::memcpy(&scale, code, sizeof(scale));
    scale *= factor;
    code += sizeof(scale);
    for (size_t i = 0; i < count; ++i) {
      const float value = static_cast<float>(static_cast<int8_t>(code[i])) * scale;
      target[i] = kAdds ? target[i] + value : value;
    }
    target += count, code += count, numElements -= count;
  }
}

void decode(float* target, size_t numElements, const uint8_t* code, float factor) {
  decodeBlocks<false>(target, numElements, code, factor);
}

void add(float* target, size_t numElements, const uint8_t* code, float factor) {
  decodeBlocks<true>(target, numElements, code, factor);
}

}  // namespace agspeed::comm::compress::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace agspeed::comm::compress {
namespace {

using Encode = decltype(HWY_STATIC_DISPATCH(encode));
using Decode = decltype(HWY_STATIC_DISPATCH(decode));

Encode* const bestEncode =
    bestVariant<Encode>(HWY_CHOOSE_AVX3(encode), HWY_CHOOSE_AVX2(encode), &HWY_STATIC_DISPATCH(encode));
Decode* const bestDecode =
    bestVariant<Decode>(HWY_CHOOSE_AVX3(decode), HWY_CHOOSE_AVX2(decode), &HWY_STATIC_DISPATCH(decode));
Decode* const bestAdd = bestVariant<Decode>(HWY_CHOOSE_AVX3(add), HWY_CHOOSE_AVX2(add), &HWY_STATIC_DISPATCH(add));

}  // namespace

bool encodeInt8(uint8_t* target, const float* source, size_t numElements) {
  return bestEncode(target, source, numElements);
}

void decodeInt8(float* target, size_t numElements, const uint8_t* code, float factor) {
  bestDecode(target, numElements, code, factor);
}

void addInt8(float* target, size_t numElements, const uint8_t* code, float factor) {
  bestAdd(target, numElements, code, factor);
}

}  // namespace agspeed::comm::compress
#endif

// SPDX-License-Identifier: Apache-2.0
// This file is compiled once per instruction set (foreach_target.h). The loops are plain, over the 256 values of a
// block; the compiler vectorizes them for each set.
#define HWY_DISABLED_TARGETS (HWY_AVX3_DL | HWY_SSE4 | HWY_SSSE3)  // these sets bring no gain here
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "comm/compress/lossless_kernels.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <utility>

#include "comm/compress/lossless_kernels.h"
#include "runtime/base/instruction_set.h"

HWY_BEFORE_NAMESPACE();
namespace agspeed::comm::compress::HWY_NAMESPACE {

constexpr size_t kBlock = 256;  ///< number of values in a block
constexpr size_t kLanes = 32;
constexpr size_t kRows = kBlock / kLanes;
constexpr size_t kHeaderBytes = 3;

// The first byte of a block (lossless_format.md).
constexpr uint8_t kZeroBlock = 0x80;
constexpr uint8_t kRawBlock = 0x81;
constexpr uint8_t kWidthMask = 0x0f;
constexpr uint8_t kZeroIsCode0 = 0x10;
constexpr uint8_t kNoPlane0 = 0x20;
constexpr uint8_t kNoPlane1 = 0x40;
/// The width that means: exponents are stored as they are, one byte each.
constexpr uint8_t kWholeBytes = 8;

/// In a block with at least this many zeros, the exponent of zeros gets a separate code (kZeroIsCode0).
constexpr size_t kMinZeros = 12;

/// A value of each type is divided into three parts: the exponent, `kPlanes` bytes, and `kMiddleBits` bits that are
/// packed. The bytes are stored in planes: a plane has one byte of each value of the block. The sign is stored with the
/// mantissa, as the highest bit of the last plane or of the packed bits.
struct F32 {
  using Value = uint32_t;
  static constexpr size_t kExponentBits = 8, kPlanes = 3, kMiddleBits = 0;

  static void split(const Value* HWY_RESTRICT source, uint8_t* HWY_RESTRICT exponents, uint8_t* HWY_RESTRICT planes,
                    uint8_t*) {
    for (size_t i = 0; i < kBlock; ++i) {
      const Value value = source[i];
      planes[i] = static_cast<uint8_t>(value);
      planes[kBlock + i] = static_cast<uint8_t>(value >> 8);
      planes[2 * kBlock + i] = static_cast<uint8_t>((value >> 16 & 0x7f) | (value >> 31 << 7));
      exponents[i] = static_cast<uint8_t>(value >> 23);
    }
  }

  static void join(Value* HWY_RESTRICT target, const uint8_t* HWY_RESTRICT exponents, const uint8_t* const* planes,
                   const uint8_t*) {
    const uint8_t* const HWY_RESTRICT low = planes[0];
    const uint8_t* const HWY_RESTRICT middle = planes[1];
    const uint8_t* const HWY_RESTRICT high = planes[2];
    for (size_t i = 0; i < kBlock; ++i) {
      const Value top = (Value{high[i]} & 0x7f) | Value{exponents[i]} << 7 | Value{high[i]} >> 7 << 15;
      target[i] = Value{low[i]} | Value{middle[i]} << 8 | top << 16;
    }
  }
};

/// The types of 16 bits. `kMiddle` is the number of packed bits, between the lowest byte and the exponent. If it is 0
/// (bf16), the sign is in the lowest byte.
template <size_t kMiddle>
struct Half {
  using Value = uint16_t;
  static constexpr size_t kExponentBits = 8 - kMiddle, kPlanes = 1, kMiddleBits = kMiddle;
  static constexpr size_t kMantissaBits = 7 + kMiddle;

  static void split(const Value* HWY_RESTRICT source, uint8_t* HWY_RESTRICT exponents, uint8_t* HWY_RESTRICT planes,
                    uint8_t* HWY_RESTRICT middle) {
    for (size_t i = 0; i < kBlock; ++i) {
      const Value value = source[i];
      exponents[i] = static_cast<uint8_t>(value >> kMantissaBits & ((1 << kExponentBits) - 1));
      const auto below = static_cast<Value>((value & ((1 << kMantissaBits) - 1)) | value >> 15 << kMantissaBits);
      planes[i] = static_cast<uint8_t>(below);
      if constexpr (kMiddle > 0) middle[i] = static_cast<uint8_t>(below >> 8);
    }
  }

  static void join(Value* HWY_RESTRICT target, const uint8_t* HWY_RESTRICT exponents, const uint8_t* const* planes,
                   const uint8_t* HWY_RESTRICT middle) {
    const uint8_t* const HWY_RESTRICT low = planes[0];
    for (size_t i = 0; i < kBlock; ++i) {
      Value below = low[i];
      if constexpr (kMiddle > 0) below = static_cast<Value>(below | middle[i] << 8);
      target[i] = static_cast<Value>((below & ((1 << kMantissaBits) - 1)) | exponents[i] << kMantissaBits |
                                     below >> kMantissaBits << 15);
    }
  }
};

using BF16 = Half<0>;
using F16 = Half<3>;

template <typename T>
constexpr size_t kRawBytes = kBlock * sizeof(typename T::Value);
template <typename T>
constexpr size_t kMiddleBytes = kLanes * T::kMiddleBits;

/// Shifts to the left by kBits, or to the right if it is negative.
template <int kBits>
constexpr uint8_t shifted(uint8_t value) {
  return static_cast<uint8_t>(kBits >= 0 ? value << (kBits & 7) : value >> (-kBits & 7));
}

/// Packs `kWidth` bits of each value. Lane j of the result has the bits of the values j, j + 32, j + 64, ... A row is
/// 32 consecutive values, one for each lane.
template <size_t kWidth>
void pack(uint8_t* HWY_RESTRICT target, const uint8_t* HWY_RESTRICT values) {
  const auto packByte = [&]<size_t kByte>() {
    // Byte kByte of each lane contains bits of the rows kFirst to kEnd - 1.
    constexpr size_t kFirst = kByte * 8 / kWidth, kEnd = std::min(kRows, (kByte * 8 + 7) / kWidth + 1);
    for (size_t lane = 0; lane < kLanes; ++lane) {
      uint8_t packed = 0;
      [&]<size_t... kRow>(std::index_sequence<kRow...>) {
        ((packed = static_cast<uint8_t>(
              packed | shifted<static_cast<int>((kFirst + kRow) * kWidth) - static_cast<int>(kByte * 8)>(
                           values[(kFirst + kRow) * kLanes + lane]))),
         ...);
      }(std::make_index_sequence<kEnd - kFirst>{});
      target[kByte * kLanes + lane] = packed;
    }
  };
  [&]<size_t... kByte>(std::index_sequence<kByte...>) {
    (packByte.template operator()<kByte>(), ...);
  }(std::make_index_sequence<kWidth>{});
}

template <size_t kWidth, size_t kRow>
void unpackRow(uint8_t* HWY_RESTRICT values, const uint8_t* HWY_RESTRICT source) {
  constexpr size_t kByte = kRow * kWidth / 8, kBit = kRow * kWidth % 8;
  for (size_t lane = 0; lane < kLanes; ++lane) {
    unsigned value = source[kByte * kLanes + lane] >> kBit;
    if constexpr (kBit + kWidth > 8) value |= static_cast<unsigned>(source[(kByte + 1) * kLanes + lane] << (8 - kBit));
    values[kRow * kLanes + lane] = static_cast<uint8_t>(value & ((1 << kWidth) - 1));
  }
}

/// The inverse of pack().
template <size_t kWidth>
void unpack(uint8_t* HWY_RESTRICT values, const uint8_t* HWY_RESTRICT source) {
  [&]<size_t... kRow>(std::index_sequence<kRow...>) {
    (unpackRow<kWidth, kRow>(values, source), ...);
  }(std::make_index_sequence<kRows>{});
}

/// Calls f.operator()<width>() for a width that is known at run time, from 1 to 7.
template <typename F>
void withWidth(size_t width, const F& f) {
  switch (width) {
    case 1: return f.template operator()<1>();
    case 2: return f.template operator()<2>();
    case 3: return f.template operator()<3>();
    case 4: return f.template operator()<4>();
    case 5: return f.template operator()<5>();
    case 6: return f.template operator()<6>();
    default: return f.template operator()<7>();
  }
}

uint8_t largest(const uint8_t* bytes) {
  uint8_t most = 0;
  for (size_t i = 0; i < kBlock; ++i) most = std::max(most, bytes[i]);
  return most;
}

size_t countAtLeast(const uint8_t* bytes, uint8_t limit) {
  uint8_t counts[kLanes] = {};
  for (size_t row = 0; row < kRows; ++row) {
    for (size_t lane = 0; lane < kLanes; ++lane) counts[lane] += bytes[row * kLanes + lane] >= limit ? 1 : 0;
  }
  size_t sum = 0;
  for (const uint8_t count : counts) sum += count;
  return sum;
}

/// Calls f(index) for each of the 256 bytes that is at least `limit`, in order.
template <typename F>
void forEachAtLeast(const uint8_t* bytes, uint8_t limit, const F& f) {
  alignas(32) uint8_t isFound[kBlock];
  for (size_t i = 0; i < kBlock; ++i) isFound[i] = bytes[i] >= limit ? 0x80 : 0;
  for (size_t i = 0; i < kBlock; i += sizeof(uint64_t)) {
    uint64_t found;
    std::memcpy(&found, isFound + i, sizeof(found));
    for (; found != 0; found &= found - 1) f(i + static_cast<size_t>(std::countr_zero(found)) / 8);
  }
}

/// Returns the escape code of a width: the code with all bits set. Width 0 has no escape code.
constexpr uint8_t escapeOf(size_t width) { return static_cast<uint8_t>((1u << width) - 1); }

struct Width {
  size_t width = 0;
  size_t numExceptions = 0;
};

/// Returns the number of bits per exponent with which the block is shortest. The result is `exponentBits` if no smaller
/// width makes the block shorter.
Width chooseWidth(const uint8_t* codes, size_t exponentBits) {
  const uint8_t most = largest(codes);
  if (most == 0) return {};
  Width best = {exponentBits, 0};
  size_t bestBytes = kLanes * exponentBits;
  for (size_t width = 1; width < exponentBits; ++width) {
    const size_t numExceptions = most < escapeOf(width) ? 0 : countAtLeast(codes, escapeOf(width));
    const size_t numBytes = kLanes * width + numExceptions;
    if (numBytes < bestBytes && numExceptions <= UINT8_MAX) {
      best = {width, numExceptions};
      bestBytes = numBytes;
    }
    if (numExceptions == 0) break;
  }
  return best;
}

/// Writes the code of each exponent to `codes`: `base` minus the exponent. If `zeroIsCode0`, the exponent 0 gets the
/// code 0, and the other codes are larger by 1.
void toCodes(uint8_t* HWY_RESTRICT codes, const uint8_t* HWY_RESTRICT exponents, uint8_t base, bool zeroIsCode0) {
  const auto from = static_cast<uint8_t>(base + (zeroIsCode0 ? 1 : 0));
  for (size_t i = 0; i < kBlock; ++i) codes[i] = static_cast<uint8_t>(from - exponents[i]);
  if (!zeroIsCode0) return;
  for (size_t i = 0; i < kBlock; ++i) codes[i] = exponents[i] == 0 ? 0 : codes[i];
}

/// The inverse of toCodes().
void fromCodes(uint8_t* HWY_RESTRICT exponents, const uint8_t* HWY_RESTRICT codes, uint8_t base, bool zeroIsCode0) {
  const auto from = static_cast<uint8_t>(base + (zeroIsCode0 ? 1 : 0));
  for (size_t i = 0; i < kBlock; ++i) exponents[i] = static_cast<uint8_t>(from - codes[i]);
  if (!zeroIsCode0) return;
  for (size_t i = 0; i < kBlock; ++i) exponents[i] = codes[i] == 0 ? 0 : exponents[i];
}

/// Encodes one block. `target` has room for maxLosslessBytes(). Returns the end of the code.
template <typename T>
uint8_t* encodeBlock(uint8_t* target, const uint8_t* source) {
  alignas(32) uint8_t exponents[kBlock];
  alignas(32) uint8_t codes[kBlock];
  alignas(32) uint8_t middle[kBlock];
  alignas(32) uint8_t planes[T::kPlanes * kBlock];
  T::split(reinterpret_cast<const typename T::Value*>(source), exponents, planes, middle);
  const uint8_t base = largest(exponents);
  if (base == 0 && std::all_of(source, source + kRawBytes<T>, [](uint8_t byte) { return byte == 0; })) {
    *target = kZeroBlock;
    return target + 1;
  }
  const size_t numZeros = kBlock - countAtLeast(exponents, 1);
  const bool zeroIsCode0 = numZeros >= kMinZeros && base > 0;
  toCodes(codes, exponents, base, zeroIsCode0);
  const Width chosen = chooseWidth(codes, T::kExponentBits);
  const bool isNarrow = chosen.width < T::kExponentBits;
  uint8_t missing = 0;
  if constexpr (T::kPlanes > 1) {
    if (largest(planes) == 0) missing |= kNoPlane0;
    if (largest(planes + kBlock) == 0) missing |= kNoPlane1;
  }
  if (!isNarrow && missing == 0) {
    *target = kRawBlock;
    std::memcpy(target + 1, source, kRawBytes<T>);
    return target + 1 + kRawBytes<T>;
  }
  target[0] = static_cast<uint8_t>(missing | (isNarrow && zeroIsCode0 ? kZeroIsCode0 : 0) | chosen.width);
  target[1] = isNarrow ? base : 0;
  target[2] = static_cast<uint8_t>(chosen.numExceptions);
  target += kHeaderBytes;
  for (size_t i = 0; i < T::kPlanes; ++i) {
    if (i < 2 && (missing & (kNoPlane0 << i)) != 0) continue;
    std::memcpy(target, planes + i * kBlock, kBlock);
    target += kBlock;
  }
  if constexpr (T::kMiddleBits > 0) {
    pack<T::kMiddleBits>(target, middle);
    target += kMiddleBytes<T>;
  }
  if (!isNarrow) {
    std::memcpy(target, exponents, kBlock);
    return target + kBlock;
  }
  if (chosen.width == 0) return target;
  const uint8_t escape = escapeOf(chosen.width);
  uint8_t* exception = target + kLanes * chosen.width;
  if (chosen.numExceptions > 0) {
    forEachAtLeast(codes, escape, [&](size_t i) { *exception++ = exponents[i]; });
    for (size_t i = 0; i < kBlock; ++i) codes[i] = std::min(codes[i], escape);
  }
  withWidth(chosen.width, [&]<size_t kWidth>() { pack<kWidth>(target, codes); });
  return exception;
}

/// Decodes one block. Returns the end of its code, or nullptr if the code is not valid.
template <typename T>
const uint8_t* decodeBlock(uint8_t* target, const uint8_t* code, const uint8_t* end) {
  static constexpr uint8_t kZeroPlane[kBlock] = {};
  if (code == end) return nullptr;
  const uint8_t first = *code;
  if (first == kZeroBlock) {
    std::memset(target, 0, kRawBytes<T>);
    return code + 1;
  }
  if (first == kRawBlock) {
    if (static_cast<size_t>(end - code) < 1 + kRawBytes<T>) return nullptr;
    std::memcpy(target, code + 1, kRawBytes<T>);
    return code + 1 + kRawBytes<T>;
  }
  constexpr uint8_t kPlaneFlags = T::kPlanes > 1 ? kNoPlane0 | kNoPlane1 : 0;
  const size_t width = first & kWidthMask;
  const bool isNarrow = width < T::kExponentBits;
  if ((first & ~(kWidthMask | kZeroIsCode0 | kPlaneFlags)) != 0) return nullptr;
  if (!isNarrow && (width != kWholeBytes || T::kExponentBits != kWholeBytes)) return nullptr;
  if (static_cast<size_t>(end - code) < kHeaderBytes) return nullptr;
  const uint8_t base = code[1];
  const size_t numExceptions = code[2];
  if ((!isNarrow || width == 0) && numExceptions > 0) return nullptr;
  const size_t numPlanes = T::kPlanes - static_cast<size_t>(std::popcount(static_cast<uint8_t>(first & kPlaneFlags)));
  const size_t numBytes = numPlanes * kBlock + kMiddleBytes<T> + width * kLanes + numExceptions;
  code += kHeaderBytes;
  if (static_cast<size_t>(end - code) < numBytes) return nullptr;

  const uint8_t* planes[T::kPlanes];
  for (size_t i = 0; i < T::kPlanes; ++i) {
    const bool isMissing = i < 2 && (first & kPlaneFlags & (kNoPlane0 << i)) != 0;
    planes[i] = isMissing ? kZeroPlane : code;
    if (!isMissing) code += kBlock;
  }
  alignas(32) uint8_t middle[kBlock];
  if constexpr (T::kMiddleBits > 0) {
    unpack<T::kMiddleBits>(middle, code);
    code += kMiddleBytes<T>;
  }
  if (!isNarrow) {
    T::join(reinterpret_cast<typename T::Value*>(target), code, planes, middle);
    return code + kBlock;
  }
  alignas(32) uint8_t codes[kBlock] = {};
  alignas(32) uint8_t exponents[kBlock];
  if (width > 0) withWidth(width, [&]<size_t kWidth>() { unpack<kWidth>(codes, code); });
  fromCodes(exponents, codes, base, (first & kZeroIsCode0) != 0);
  const uint8_t* const exceptions = code + kLanes * width;
  if (width > 0) {
    size_t numFound = 0;
    forEachAtLeast(codes, escapeOf(width), [&](size_t i) {
      if (numFound < numExceptions) exponents[i] = exceptions[numFound];
      ++numFound;
    });
    if (numFound != numExceptions) return nullptr;
  }
  T::join(reinterpret_cast<typename T::Value*>(target), exponents, planes, middle);
  return exceptions + numExceptions;
}

template <typename T>
size_t encodeAs(uint8_t* target, size_t room, const uint8_t* source, size_t numElements) {
  alignas(32) uint8_t block[kHeaderBytes + kRawBytes<T>];
  size_t size = 0;
  for (; numElements >= kBlock; numElements -= kBlock, source += kRawBytes<T>) {
    if (room - size >= sizeof(block)) {
      size = static_cast<size_t>(encodeBlock<T>(target + size, source) - target);
      continue;
    }
    const auto length = static_cast<size_t>(encodeBlock<T>(block, source) - block);
    if (length > room - size) return 0;
    std::memcpy(target + size, block, length);
    size += length;
  }
  const size_t rest = numElements * sizeof(typename T::Value);
  if (rest > room - size) return 0;
  if (rest > 0) std::memcpy(target + size, source, rest);
  return size + rest;
}

template <typename T>
bool decodeAs(uint8_t* target, size_t numElements, const uint8_t* code, size_t numBytes) {
  const uint8_t* const end = code + numBytes;
  for (; numElements >= kBlock; numElements -= kBlock, target += kRawBytes<T>) {
    code = decodeBlock<T>(target, code, end);
    if (code == nullptr) return false;
  }
  const size_t rest = numElements * sizeof(typename T::Value);
  if (static_cast<size_t>(end - code) != rest) return false;
  if (rest > 0) std::memcpy(target, code, rest);
  return true;
}

size_t encode(uint8_t* target, size_t room, const uint8_t* source, size_t numElements, DType dtype) {
  if (dtype == DType::kF32) return encodeAs<F32>(target, room, source, numElements);
  if (dtype == DType::kBF16) return encodeAs<BF16>(target, room, source, numElements);
  return encodeAs<F16>(target, room, source, numElements);
}

bool decode(uint8_t* target, size_t numElements, DType dtype, const uint8_t* code, size_t numBytes) {
  if (dtype == DType::kF32) return decodeAs<F32>(target, numElements, code, numBytes);
  if (dtype == DType::kBF16) return decodeAs<BF16>(target, numElements, code, numBytes);
  return decodeAs<F16>(target, numElements, code, numBytes);
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

}  // namespace

size_t encodeByVectors(uint8_t* target, size_t room, const uint8_t* source, size_t numElements, DType dtype) {
  return bestEncode(target, room, source, numElements, dtype);
}

bool decodeByVectors(uint8_t* target, size_t numElements, DType dtype, const uint8_t* code, size_t numBytes) {
  return bestDecode(target, numElements, dtype, code, numBytes);
}

}  // namespace agspeed::comm::compress
#endif

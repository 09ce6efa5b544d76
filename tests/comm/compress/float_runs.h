// SPDX-License-Identifier: Apache-2.0
// Random runs of floating-point values for tests of codes. Each run mixes the kinds of values that a code may treat
// differently. Not thread-safe.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "runtime/base/dtype.h"
#include "tests/fuzz/random_bytes.h"

namespace agspeed::comm::compress {

/// Draws runs of one type. It makes `kNumValues` values of each kind once, and copies parts of them.
class FloatRuns {
 public:
  FloatRuns(RandomBytes& random, DType dtype) : random_(random), dtype_(dtype), size_(sizeInBytes(dtype)) {
    for (size_t kind = 0; kind < kNumKinds; ++kind) {
      for (size_t i = 0; i < kNumValues; ++i) append(pools_[kind], one(kind, i));
    }
  }

  /// Returns the bytes of a run. In half of the runs all values are of one kind. In the others, up to 700 consecutive
  /// values are of one kind.
  Bytes draw(size_t numElements) {
    Bytes values;
    values.reserve(numElements * size_);
    const bool isPure = random_.below(2) == 0;
    size_t kind = random_.below(kNumKinds + 1);
    while (values.size() < numElements * size_) {
      const size_t left = numElements - values.size() / size_;
      const size_t count = isPure ? left : std::min<size_t>(left, 1 + random_.below(700));
      if (kind == kNumKinds) {
        repeat(values, count);
      } else {
        copy(values, pools_[kind], count);
      }
      if (!isPure) kind = random_.below(kNumKinds + 1);
    }
    return values;
  }

 private:
  static constexpr size_t kNumValues = 8192, kNumKinds = 12;

  uint32_t bits() { return static_cast<uint32_t>(random_.below(uint64_t{1} << 32)); }

  /// Returns a value near the normal distribution, whose scale changes every 512 values.
  uint32_t normal(size_t at) {
    double sum = 0;
    for (int i = 0; i < 6; ++i) sum += static_cast<double>(bits()) / 0x1p32 - 0.5;
    return std::bit_cast<uint32_t>(static_cast<float>(std::ldexp(sum, static_cast<int>(at / 512 * 3) - 30)));
  }

  /// Returns the bits of an f32.
  uint32_t one(size_t kind, size_t at) {
    const uint32_t sign = bits() & 0x80000000;
    switch (kind) {
      case 0: return bits();
      case 1: return random_.below(64) == 0 ? sign : 0;                                   // zeros of both signs
      case 2: return random_.below(3) == 0 ? 0 : normal(at);                              // some zeros
      case 3: return random_.below(9) == 0 ? 0x7f800000 | sign : normal(at);              // some infinities
      case 4: return random_.below(2) == 0 ? 0x7f800001 | bits() : normal(at);            // NaN with any payload
      case 5: return sign | (bits() & 0x007fffff);                                        // denormal
      case 6: return normal(at) & 0xffff0000;                                             // computed in bf16
      case 7: return normal(at) & 0xff00ffff;                                             // a plane of zeros
      case 8: return normal(at) & 0xffffff00;                                             // the lowest plane is zero
      case 9: return sign | (0x3f800000 + (random_.below(256) == 0 ? bits() << 23 : 0));  // rare exceptions
      case 10: return (random_.below(2) == 0 ? 0x7f000000 : 0x00800000) | (bits() >> 9);  // the extreme exponents
      default: return normal(at);
    }
  }

  void append(Bytes& values, uint32_t bits) const {
    std::array<std::byte, 4> stored;
    if (dtype_ == DType::kF32) {
      std::memcpy(stored.data(), &bits, 4);
    } else {
      const auto half = dtype_ == DType::kBF16
                            ? static_cast<uint16_t>(bits >> 16)
                            : std::bit_cast<uint16_t>(static_cast<_Float16>(std::bit_cast<float>(bits)));
      std::memcpy(stored.data(), &half, 2);
    }
    values.insert(values.end(), stored.begin(), stored.begin() + static_cast<ptrdiff_t>(size_));
  }

  void copy(Bytes& values, const Bytes& pool, size_t count) {
    while (count > 0) {
      const size_t at = random_.below(kNumValues), taken = std::min(count, kNumValues - at);
      const auto begin = pool.begin() + static_cast<ptrdiff_t>(at * size_);
      values.insert(values.end(), begin, begin + static_cast<ptrdiff_t>(taken * size_));
      count -= taken;
    }
  }

  /// Appends equal values, of any bits.
  void repeat(Bytes& values, size_t count) {
    const Bytes value = random_.bytes(size_);
    for (size_t i = 0; i < count; ++i) values.insert(values.end(), value.begin(), value.end());
  }

  RandomBytes& random_;
  const DType dtype_;
  const size_t size_;
  std::array<Bytes, kNumKinds> pools_;
};

}  // namespace agspeed::comm::compress

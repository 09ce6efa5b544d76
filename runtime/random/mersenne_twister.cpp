// SPDX-License-Identifier: Apache-2.0
// This file is compiled once per instruction set (foreach_target.h). The loops are plain, and the compiler vectorizes
// them for each set.
#define HWY_DISABLED_TARGETS (HWY_AVX3_DL | HWY_SSE4 | HWY_SSSE3)  // these sets bring no gain here
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/random/mersenne_twister.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "runtime/base/instruction_set.h"
#include "runtime/random/mersenne_twister.h"

HWY_BEFORE_NAMESPACE();
namespace agspeed::runtime::random::HWY_NAMESPACE {

constexpr size_t kNumWords = MersenneTwister::kNumWords;
constexpr size_t kDistance = 397;  ///< a new word depends on the word this far ahead, in a circle
constexpr size_t kWrap = kNumWords - kDistance;
constexpr uint64_t kMantissa = (uint64_t{1} << 53) - 1;

HWY_INLINE uint32_t twisted(uint32_t word, uint32_t following) {
  const uint32_t mixed = (word & 0x80000000) | (following & 0x7fffffff);
  return mixed >> 1 ^ ((0 - (following & 1)) & 0x9908b0df);
}

/// Replaces all words. An iteration of a loop depends on one that is at least kWrap iterations before it, which is more
/// than a vector has lanes.
void renew(uint32_t* words) {
  for (size_t i = 0; i < kWrap; ++i) words[i] = words[i + kDistance] ^ twisted(words[i], words[i + 1]);
  for (size_t i = kWrap; i < kNumWords - 1; ++i) words[i] = words[i - kWrap] ^ twisted(words[i], words[i + 1]);
  words[kNumWords - 1] = words[kDistance - 1] ^ twisted(words[kNumWords - 1], words[0]);
}

void temper(const uint32_t* HWY_RESTRICT words, size_t count, uint32_t* HWY_RESTRICT drawn) {
  for (size_t i = 0; i < count; ++i) {
    uint32_t word = words[i];
    word ^= word >> 11;
    word ^= word << 7 & 0x9d2c5680;
    word ^= word << 15 & 0xefc60000;
    drawn[i] = word ^ word >> 18;
  }
}

void compare(const uint32_t* HWY_RESTRICT drawn, size_t count, uint64_t limit, uint8_t* HWY_RESTRICT target) {
  for (size_t i = 0; i < count; ++i) {
    uint64_t pair;
    std::memcpy(&pair, drawn + 2 * i, sizeof(pair));
    pair = (pair >> 32 | pair << 32) & kMantissa;  // the first word is the high half
    target[i] = pair < limit ? 1 : 0;
  }
}

void draw(MersenneTwister& twister, uint64_t limit, uint8_t* target, size_t numElements) {
  uint32_t drawn[kNumWords + 1];
  size_t kept = 0;  // 1 if the first word of a pair was the last one before new words
  while (numElements > 0) {
    if (twister.next == kNumWords) {
      renew(twister.words.data());
      twister.next = 0;
    }
    const size_t fresh = std::min(kNumWords - twister.next, 2 * numElements - kept);
    temper(twister.words.data() + twister.next, fresh, drawn + kept);
    twister.next += fresh;
    const size_t pairs = (kept + fresh) / 2;
    compare(drawn, pairs, limit, target);
    target += pairs, numElements -= pairs;
    if (kept = (kept + fresh) % 2; kept == 1) drawn[0] = drawn[2 * pairs];
  }
}

}  // namespace agspeed::runtime::random::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace agspeed::runtime::random {
namespace {

using Draw = decltype(HWY_STATIC_DISPATCH(draw));

Draw* const bestDraw = bestVariant<Draw>(HWY_CHOOSE_AVX3(draw), HWY_CHOOSE_AVX2(draw), &HWY_STATIC_DISPATCH(draw));

}  // namespace

void drawBernoulli(MersenneTwister& twister, double probability, uint8_t* target, size_t numElements) {
  // A number is m / 2^53 with an integer m. It is less than `probability` if and only if m is less than this limit.
  const auto limit = static_cast<uint64_t>(std::ceil(std::ldexp(probability, 53)));
  bestDraw(twister, limit, target, numElements);
}

}  // namespace agspeed::runtime::random
#endif

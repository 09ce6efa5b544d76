// SPDX-License-Identifier: Apache-2.0
// The generator behind torch's random numbers on the CPU, as a value, and draws from it with vector instructions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace agspeed::runtime::random {

/// The 32-bit Mersenne Twister MT19937 (Matsumoto and Nishimura, 1998). Not thread-safe.
struct MersenneTwister {
  static constexpr size_t kNumWords = 624;

  std::array<uint32_t, kNumWords> words;
  /// The index of the word that the next draw uses. kNumWords: the next draw computes new words first.
  size_t next = kNumWords;
};

/// Draws `numElements` numbers from [0, 1) and sets an element of `target` to 1 if its number is less than
/// `probability`, else to 0. A number is the low 53 bits of two words of the twister, the first one being the high
/// half, divided by 2^53. These are the draws of torch's bernoulli_ on the CPU. `probability` is from 0 to 1.
void drawBernoulli(MersenneTwister& twister, double probability, uint8_t* target, size_t numElements);

}  // namespace agspeed::runtime::random

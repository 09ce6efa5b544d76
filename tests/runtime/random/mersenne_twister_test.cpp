// SPDX-License-Identifier: Apache-2.0
#include "runtime/random/mersenne_twister.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

namespace agspeed::runtime::random {
namespace {

/// A twister in the state of a new std::mt19937.
MersenneTwister seeded(uint32_t seed) {
  MersenneTwister twister;
  twister.words[0] = seed;
  for (uint32_t i = 1; i < MersenneTwister::kNumWords; ++i) {
    twister.words[i] = 1812433253 * (twister.words[i - 1] ^ twister.words[i - 1] >> 30) + i;
  }
  return twister;
}

uint8_t expected(std::mt19937& engine, double probability) {
  const uint64_t high = engine();
  const uint64_t bits = (high << 32 | engine()) & ((uint64_t{1} << 53) - 1);
  return static_cast<double>(bits) / 9007199254740992.0 < probability ? 1 : 0;
}

TEST(MersenneTwisterTest, DrawsOfAnyLengthFollowEachOther) {
  std::mt19937 lengths(7);
  for (const double probability : {0.0, 1e-17, 0.1, 0.5, 0.9, 0.9999999, 1.0}) {
    SCOPED_TRACE(testing::Message() << "probability " << probability);
    MersenneTwister twister = seeded(5489);
    std::mt19937 engine(5489);
    for (int call = 0; call < 60; ++call) {
      const size_t count = call % 3 == 0 ? lengths() % 3 : lengths() % 2000;
      std::vector<uint8_t> drawn(count + 1, 7);
      drawBernoulli(twister, probability, drawn.data(), count);
      for (size_t i = 0; i < count; ++i) ASSERT_EQ(drawn[i], expected(engine, probability)) << call << ", " << i;
      ASSERT_EQ(drawn[count], 7);
    }
  }
}

TEST(MersenneTwisterTest, BeginsAtAnOddWord) {
  MersenneTwister twister = seeded(3);
  std::mt19937 engine(3);
  uint8_t unused;
  drawBernoulli(twister, 0.5, &unused, 1);
  ++twister.next;  // as after a draw of one word
  engine.discard(3);
  std::vector<uint8_t> drawn(5000);
  drawBernoulli(twister, 0.3, drawn.data(), drawn.size());
  for (const uint8_t each : drawn) ASSERT_EQ(each, expected(engine, 0.3));
}

}  // namespace
}  // namespace agspeed::runtime::random

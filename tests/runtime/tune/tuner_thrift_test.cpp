// SPDX-License-Identifier: Apache-2.0
// The number of pairs that max mode takes, and the cost of stopping early. Training is simulated with steps of 200 ms,
// so a pair takes more than half a second. Every test prints its figures (runtime/tune/README.md has the table).
//
// Separating each arm from eager, and tied arms from each other, down to the target half-width takes 235 pairs in the
// six-arm world below on a quiet machine and 720 to 890 pairs on a noisy one. The limits are half of that.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "tests/runtime/tune/simulator.h"

namespace agspeed::runtime::tune {
namespace {

using testing::Noise;
using testing::Simulator;
using testing::World;

constexpr int kSeeds = 60;
/// Step time ratios: two tied arms 1.05 times as fast as eager, three about as fast as it, and one clearly slower.
const std::vector<double> kSixArms = {1 / 1.05, 1 / 1.05, 1 / 0.9, 1.0, 1 / 0.98, 1 / 1.02};

struct Machine {
  const char* name;
  Noise noise;
  double maxPairsSixArms;
  double maxPairsTie;
};

const Machine kMachines[] = {{"1 %", {.sigma = 0.01}, 114, 21},
                             {"3 %", {.sigma = 0.03}, 410, 90},
                             {"2 % and 5 % slow steps", {.sigma = 0.02, .tailProbability = 0.05}, 358, 58},
                             {"3 % and 3 % slow steps", {.sigma = 0.03, .tailProbability = 0.03}, 440, 90}};

World makeWorld(uint64_t seed, const Noise& noise, const std::vector<double>& ratios) {
  World world;
  world.seed = seed;
  world.mode = Mode::kMax;
  world.noise = noise;
  world.eagerSeconds = 0.2;
  for (size_t i = 0; i < ratios.size(); ++i) world.arms.push_back({.name = std::to_string(i), .ratio = ratios[i]});
  return world;
}

struct Summary {
  double pairs = 0;   ///< mean until the decision; a block of two pairs takes six steps
  double wins = 0;    ///< share of decisions for an arm
  double regret = 0;  ///< mean of the chosen step time over the best one, minus 1
};

Summary summarise(const Noise& noise, const std::vector<double>& ratios) {
  const double best = std::min(1.0, *std::min_element(ratios.begin(), ratios.end()));
  Summary summary;
  for (int seed = 1; seed <= kSeeds; ++seed) {
    Simulator simulator(makeWorld(static_cast<uint64_t>(seed), noise, ratios));
    while (simulator.tuner().phase() != Phase::kSettled) simulator.run(6);
    const Decision& decision = *simulator.tuner().decision();
    const double chosen = decision.arm == kEagerArm ? 1 : ratios[std::stoul(decision.arm)];
    summary.pairs += static_cast<double>(decision.step) / 3 / kSeeds;
    summary.wins += decision.arm == kEagerArm ? 0 : 1.0 / kSeeds;
    summary.regret += (chosen / best - 1) / kSeeds;
  }
  return summary;
}

Summary report(const char* what, const Machine& machine, const std::vector<double>& ratios) {
  const Summary summary = summarise(machine.noise, ratios);
  std::printf("%-18s noise %-23s %6.1f pairs, an arm chosen in %5.1f %%, regret %.2f %%, seeds 1..%d\n", what,
              machine.name, summary.pairs, 100 * summary.wins, 100 * summary.regret, kSeeds);
  return summary;
}

TEST(TunerThrift, TiedWinnersAreNotDistinguished) {
  for (const Machine& machine : kMachines) {
    const Summary summary = report("six arms", machine, kSixArms);
    EXPECT_LE(summary.pairs, machine.maxPairsSixArms) << machine.name;
    EXPECT_LE(summary.regret, 0.005) << machine.name;
  }
}

TEST(TunerThrift, TheChoiceAmongManyCloseArmsCostsLittle) {
  for (const Machine& machine : kMachines) {
    EXPECT_LE(report("0.80, 0.79", machine, {0.80, 0.79}).regret, 0.005) << machine.name;
    EXPECT_LE(report("0.73, 0.7", machine, {0.73, 0.7}).regret, 0.005) << machine.name;
    EXPECT_LE(report("0.95", machine, {0.95}).regret, 0.005) << machine.name;
  }
}

TEST(TunerThrift, ATieWithEagerIsGivenUp) {
  for (const Machine& machine : kMachines) {
    const Summary summary = report("as fast as eager", machine, {1});
    EXPECT_LE(summary.pairs, machine.maxPairsTie) << machine.name;
    EXPECT_EQ(summary.wins, 0) << machine.name;
  }
}

TEST(TunerThrift, ManyArmsBelowTheGainDoNotWinByChance) {
  // Six arms are exactly at the limit of winning. Each may win with a probability of 0.5 %.
  for (const Machine& machine : kMachines) {
    EXPECT_EQ(report("six of 1.00", machine, {1, 1, 1, 1, 1, 1}).wins, 0) << machine.name;
    EXPECT_LE(report("six of 0.99", machine, std::vector<double>(6, 0.99)).wins, 0.05) << machine.name;
  }
}

TEST(TunerThrift, WhatLostToAnArmWithSlowStepsIsBackInTheRace) {
  // Arm 0 has the best median, but every tenth step takes four times as long. Arm 1, which lost to it, is the right
  // choice.
  int numRight = 0;
  for (int seed = 1; seed <= kSeeds; ++seed) {
    World world = makeWorld(static_cast<uint64_t>(seed), {.sigma = 0.03}, {0.9, 0.95});
    world.arms[0].slowProbability = 0.1;
    world.arms[0].slowFactor = 4;
    Simulator simulator(world);
    while (simulator.tuner().phase() != Phase::kSettled) simulator.run(6);
    numRight += simulator.tuner().decision()->arm == "1" ? 1 : 0;
  }
  EXPECT_GE(numRight, kSeeds * 0.9) << "seeds 1.." << kSeeds;
}

}  // namespace
}  // namespace agspeed::runtime::tune

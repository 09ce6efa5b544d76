// SPDX-License-Identifier: Apache-2.0
// Steps whose times arrive late or never, as on an asynchronous device. The tuner decides as with prompt times.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "tests/runtime/tune/simulator.h"

namespace agspeed::runtime::tune {
namespace {

using testing::Outcome;
using testing::Simulator;
using testing::World;

constexpr int32_t kMostLate = 8;
constexpr int64_t kSteps = 12000;

World makeWorld(uint64_t seed, Mode mode, double best) {
  World world;
  world.seed = seed;
  world.mode = mode;
  world.captureSeconds = 0.2;
  world.takesNaps = mode == Mode::kAuto;
  world.arms = {{.name = "native", .ratio = 1.1, .compileSeconds = 0.4, .loadSeconds = 0.1},
                {.name = "inductor", .ratio = best, .compileSeconds = 2, .loadSeconds = 0.2},
                {.name = "plug-in", .ratio = 1.4, .compileSeconds = 1, .loadSeconds = 0.2},
                {.name = "hungry", .ratio = 0.5, .compileSeconds = 1, .peakBytes = 400 << 20}};
  return world;
}

Outcome decided(const World& world) {
  Simulator simulator(world);
  simulator.run(kSteps);
  EXPECT_EQ(simulator.tuner().phase(), Phase::kSettled) << "seed " << world.seed << ", " << toString(world.mode);
  Outcome outcome = simulator.outcome();
  // The decision, because the current arm may be one that is tried again.
  outcome.chosen = simulator.tuner().decision() ? simulator.tuner().decision()->arm : "none";
  return outcome;
}

TEST(LateSteps, DecideAsPromptOnesDo) {
  for (const Mode mode : {Mode::kMax, Mode::kAuto}) {
    for (const double best : {0.7, 0.9, 1.05}) {
      for (uint64_t seed = 1; seed <= 12; ++seed) {
        World world = makeWorld(seed, mode, best);
        const std::string prompt = decided(world).chosen;
        world.maxLate = kMostLate;
        const std::string late = decided(world).chosen;
        world.missingShare = 0.2;
        const std::string missing = decided(world).chosen;
        EXPECT_EQ(prompt, best < 1 ? "inductor" : "eager") << "seed " << seed << ", " << toString(mode);
        EXPECT_EQ(late, prompt) << "seed " << seed << ", " << toString(mode) << ", ratio " << best;
        EXPECT_EQ(missing, prompt) << "seed " << seed << ", " << toString(mode) << ", ratio " << best;
      }
    }
  }
}

TEST(LateSteps, CostNoMoreThanTheBudget) {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    World world = makeWorld(seed, Mode::kAuto, 0.8);
    world.maxLate = kMostLate;
    world.arms.push_back({.name = "disaster", .ratio = 8, .compileSeconds = 0.3, .loadSeconds = 0.1});
    const Outcome outcome = decided(world);
    EXPECT_LE(outcome.maxBudgetShare, TunerConfig{}.searchFraction + 0.02) << "seed " << seed;
    EXPECT_EQ(outcome.chosen, "inductor") << "seed " << seed;
  }
}

TEST(LateSteps, AreKnownByThePlanThatRanThem) {
  World world = makeWorld(5, Mode::kMax, 0.8);
  world.noise.sigma = 0.001;
  world.maxLate = kMostLate;
  Simulator simulator(world);
  simulator.run(kSteps);
  // If a late step counted for the arm that runs when it is reported, means would mix.
  const std::string snapshot = simulator.tuner().snapshot();
  const std::optional<Decision>& decision = simulator.tuner().decision();
  ASSERT_TRUE(decision && decision->ratio) << snapshot;
  EXPECT_NEAR(decision->ratio->estimate, 0.8, 0.005) << snapshot;
}

}  // namespace
}  // namespace agspeed::runtime::tune

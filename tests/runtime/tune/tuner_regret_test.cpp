// SPDX-License-Identifier: Apache-2.0
// Mode auto over several horizons: it keeps its budget at every step, and its regret against the best fixed choice is
// bounded.
//
// C is the cost of tuning until the decision: capture, load, and steps slowed by the compile and by trials. A horizon
// of h means h * C seconds of eager steps. The best fixed choice pays for its own capture, compile and load, as a user
// who compiles by hand does.
//
// The budget alone forces eager for the first 5 C. So for an arm s times as fast that compiles for free, the regret at
// horizon h is at least (5 + 1 + (h - 5) / s) / (1 + h / s). For h = 30 this is 1.04 at s = 1.25, 1.08 at s = 1.5, and
// 1.16 at s = 2. The limits below follow from this formula.
#include <gtest/gtest.h>

#include "tests/runtime/tune/simulator.h"

namespace agspeed::runtime::tune {
namespace {

using testing::bestFixedSeconds;
using testing::Outcome;
using testing::Simulator;
using testing::World;

constexpr double kBudget = 0.20;
constexpr double kHorizons[] = {1, 3, 10, 15, 20, 30, 60, 300};

World makeWorld(uint64_t seed, double ratio, double compileSeconds) {
  World world;
  world.seed = seed;
  world.captureSeconds = world.config.captureSeconds = 2;
  world.arms = {{.name = "arm", .ratio = ratio, .compileSeconds = compileSeconds, .loadSeconds = 0.2}};
  return world;
}

double tuningCost(const World& world) {
  Simulator simulator(world);
  while (simulator.tuner().phase() != Phase::kSettled) simulator.run(50);
  return simulator.outcome().slowdownSeconds;
}

struct Regret {
  double ratio = 0;
  double budgetShare = 0;
};

Regret measure(World world, double horizon) {
  const auto numSteps = static_cast<int64_t>(horizon * tuningCost(world) / world.eagerSeconds);
  const double best = bestFixedSeconds(world, numSteps, false);
  Simulator simulator(std::move(world));
  simulator.run(numSteps);
  const Outcome outcome = simulator.outcome();
  return {outcome.wallSeconds / best, outcome.maxBudgetShare};
}

TEST(AutoRegret, BudgetIsNeverExceeded) {
  for (const double ratio : {0.5, 0.9, 1.0, 1.1, 1.5, 4.0, 10.0}) {
    for (const double compileSeconds : {0.2, 20.0}) {
      for (uint64_t seed = 1; seed <= 5; ++seed) {
        const Regret regret = measure(makeWorld(seed, ratio, compileSeconds), 60);
        EXPECT_LE(regret.budgetShare, kBudget * 1.02)
            << "seed " << seed << ", ratio " << ratio << ", compile " << compileSeconds << " s";
      }
    }
  }
}

TEST(AutoRegret, ADisasterCostsOneStepBeyondTheBudget) {
  // A step of an arm that turns out a hundred times slower cannot be interrupted. Training has to pay for it before the
  // next one.
  World world = makeWorld(1, 100, 1);
  const double trained = 10 * world.captureSeconds;
  EXPECT_LE(measure(world, 60).budgetShare, kBudget + 100 * world.eagerSeconds / trained) << "seed 1";
}

TEST(AutoRegret, BudgetHoldsWhereTheDriverLooksAwayWhileNothingCanBePaidFor) {
  for (const double ratio : {0.5, 1.0, 1.5}) {
    for (const double eagerSeconds : {0.0004, 0.02}) {
      World world = makeWorld(7, ratio, 10);
      world.eagerSeconds = eagerSeconds;
      world.takesNaps = true;
      Simulator simulator(world);
      simulator.run(static_cast<int64_t>(60 * world.captureSeconds / eagerSeconds));
      const Outcome outcome = simulator.outcome();
      EXPECT_LE(outcome.maxBudgetShare, kBudget * 1.05) << "ratio " << ratio << ", steps of " << eagerSeconds << " s";
      EXPECT_EQ(outcome.chosen, ratio < 1 ? "arm" : "eager") << "ratio " << ratio;
      EXPECT_GT(outcome.decidedAtStep, 0) << "ratio " << ratio;
    }
  }
}

TEST(AutoRegret, MostStepsAreQuietWhileTheCaptureIsBeingEarned) {
  World world = makeWorld(1, 0.5, 10);
  world.eagerSeconds = 0.0004;
  Simulator simulator(world);
  simulator.run(100);
  EXPECT_EQ(simulator.tuner().quietSteps(), 1000) << "2 s are paid for by 10 s of training, but reports stay fresh";
  world.eagerSeconds = 0.5;
  Simulator slow(world);
  slow.run(20);
  EXPECT_EQ(slow.tuner().quietSteps(), 0) << "slow steps are all seen: too few of them are known";
}

TEST(AutoRegret, BudgetHoldsOnANoisyMachineToo) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    World world = makeWorld(seed, 0.9, 10);
    world.noise = {.sigma = 0.05, .tailProbability = 0.03, .burstEvery = 200};
    EXPECT_LE(measure(world, 60).budgetShare, kBudget * 1.05) << "seed " << seed;
  }
}

TEST(AutoRegret, NothingIsCapturedBelowTheHorizon) {
  for (const double horizon : {1.0, 2.0}) {
    EXPECT_LE(measure(makeWorld(1, 1.0, 1), horizon).ratio, 1.005) << "horizon " << horizon;
  }
}

TEST(AutoRegret, WithoutAWinnerItIsWhatTheBudgetAllows) {
  for (const double horizon : kHorizons) {
    EXPECT_LE(measure(makeWorld(2, 1.0, 4), horizon).ratio, 1 + kBudget * 1.02) << "horizon " << horizon;
    EXPECT_LE(measure(makeWorld(2, 1.3, 4), horizon).ratio, 1 + kBudget * 1.02) << "horizon " << horizon;
  }
}

TEST(AutoRegret, IsSmallBeyondThirtyTimesTheCost) {
  for (const double speedup : {1.05, 1.1, 1.2, 1.25, 1.5}) {
    for (const double horizon : {30.0, 60.0, 300.0}) {
      for (const double compileSeconds : {0.5, 8.0}) {
        EXPECT_LE(measure(makeWorld(3, 1 / speedup, compileSeconds), horizon).ratio, 1.10)
            << "speed-up " << speedup << ", horizon " << horizon << ", compile " << compileSeconds << " s";
      }
    }
  }
}

TEST(AutoRegret, IsBoundedBelow) {
  for (const double speedup : {1.05, 1.1, 1.2, 1.25}) {
    for (const double horizon : kHorizons) {
      EXPECT_LE(measure(makeWorld(4, 1 / speedup, 0.5), horizon).ratio, 1.25)
          << "speed-up " << speedup << ", horizon " << horizon;
    }
  }
}

TEST(AutoRegret, FollowsTheArithmeticOfTheBudgetForLargeSpeedups) {
  for (const double speedup : {1.5, 2.0, 3.0}) {
    for (const double horizon : {15.0, 20.0, 30.0, 60.0, 100.0, 300.0}) {
      const double bound = (5 + 1 + (horizon - 5) / speedup) / (1 + horizon / speedup);
      EXPECT_LE(measure(makeWorld(5, 1 / speedup, 0.2), horizon).ratio, bound * 1.08)
          << "speed-up " << speedup << ", horizon " << horizon;
    }
    EXPECT_LE(measure(makeWorld(5, 1 / speedup, 0.2), 300).ratio, 1.10) << "speed-up " << speedup;
  }
}

TEST(AutoRegret, LongCompilesAtIdlePriorityDoNotStarveTheGain) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    World world = makeWorld(seed, 0.6, 30);
    Simulator simulator(world);
    simulator.run(60000);
    EXPECT_EQ(simulator.outcome().chosen, "arm") << "seed " << seed;
    EXPECT_LE(simulator.outcome().wallSeconds / bestFixedSeconds(world, 60000, false), 1.10) << "seed " << seed;
  }
}

}  // namespace
}  // namespace agspeed::runtime::tune

// SPDX-License-Identifier: Apache-2.0
#include "runtime/tune/drift_guard.h"

#include <gtest/gtest.h>

#include "tests/runtime/tune/simulator.h"

namespace agspeed::runtime::tune {
namespace {

using testing::Outcome;
using testing::Simulator;
using testing::World;

World makeWorld(uint64_t seed) {
  World world;
  world.seed = seed;
  world.mode = Mode::kMax;
  world.arms = {{.name = "native", .ratio = 0.8}};
  return world;
}

TEST(DriftGuard, RollsBackWhenTheChosenArmBecomesSlowerThanEager) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    World world = makeWorld(seed);
    world.config.maxRetunes = 0;
    world.change = [](const std::string& arm, int64_t step) { return arm == "native" && step > 5000 ? 1.5 : 1.0; };
    Simulator simulator(world);
    simulator.run(5000);
    ASSERT_EQ(simulator.outcome().chosen, "native") << "seed " << seed;
    simulator.run(2000);
    const Outcome outcome = simulator.outcome();
    EXPECT_EQ(outcome.chosen, "eager") << "seed " << seed;
    ASSERT_EQ(outcome.rollbacks.size(), 1u) << "seed " << seed;
    EXPECT_NE(outcome.rollbacks[0].find("native became slower than eager"), std::string::npos) << outcome.rollbacks[0];
    EXPECT_EQ(simulator.tuner().status(), "eager");
  }
}

TEST(DriftGuard, FindsASmallLastingLossByRoutineChecks) {
  World world = makeWorld(5);
  world.arms[0].ratio = 0.95;
  world.config.maxRetunes = 0;
  world.change = [](const std::string& arm, int64_t step) { return arm == "native" && step > 3000 ? 1.1 : 1.0; };
  Simulator simulator(world);
  simulator.run(60000);
  EXPECT_EQ(simulator.outcome().rollbacks.size(), 1u) << "seed 5";
}

TEST(DriftGuard, NoticesAPlanThatIsSlowerFromItsFirstSettledStepOn) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    // 1.04 times as fast in the trial, and 0.94 times once settled: less than a shift of the machine.
    bool isSettled = false;
    World world = makeWorld(seed);
    world.arms[0].ratio = 1 / 1.04;
    world.config.maxRetunes = 0;
    world.change = [&isSettled](const std::string& arm, int64_t) {
      return arm == "native" && isSettled ? 1.04 / 0.94 : 1.0;
    };
    Simulator simulator(world);
    while (simulator.tuner().status() == "tuning") simulator.run(1);
    ASSERT_EQ(simulator.outcome().chosen, "native") << "seed " << seed;
    isSettled = true;
    simulator.run(200);
    EXPECT_EQ(simulator.outcome().rollbacks.size(), 1u) << "seed " << seed;
    EXPECT_EQ(simulator.outcome().chosen, "eager") << "seed " << seed;
  }
}

TEST(DriftGuard, ExpectsNoMoreThanWhatThePlanWasChosenFor) {
  EXPECT_DOUBLE_EQ(DriftGuard::stepLimit(0.5, 1.0), 0.535);
  EXPECT_DOUBLE_EQ(DriftGuard::stepLimit(0.97, 1.0), 1.0) << "slower than eager was";
  EXPECT_DOUBLE_EQ(DriftGuard::stepLimit(1.0, 0.9), 1.07) << "at this shape eager was faster";
}

TEST(DriftGuard, LooksAtOnceWhereTheFirstStepsMissTheirLimit) {
  const auto suspicions = [](double seconds) {
    DriftGuard guard{TunerConfig{}};
    guard.start(false, {{0, 1.0}});
    for (int i = 0; i < 32; ++i) {
      EXPECT_EQ(guard.quietSteps(4), 0) << "the first steps are all of use";
      guard.addSteps(1, 0);
      guard.addSteadyStep(0, seconds);
    }
    return guard.numSuspicions();
  };
  EXPECT_EQ(suspicions(1.01), 1);
  EXPECT_EQ(suspicions(0.99), 0);
}

TEST(DriftGuard, ConfirmsAPlanThatRunsAnotherGraph) {
  DriftGuard guard{TunerConfig{}};
  guard.start(false);
  guard.addSteps(1000, 0);
  EXPECT_FALSE(guard.isRecheckDue(100));
  guard.doubt();
  guard.addSteps(199, 0);
  EXPECT_FALSE(guard.isRecheckDue(100));
  guard.addSteps(1, 0);
  EXPECT_TRUE(guard.isRecheckDue(100));
}

TEST(DriftGuard, RollsBackWhenAnotherGraphMakesThePlanSlower) {
  World world = makeWorld(6);
  world.arms[0].ratio = 0.95;
  world.config.maxRetunes = 0;
  world.grows = [](int64_t step) { return step == 3000; };
  world.change = [](const std::string& arm, int64_t step) { return arm == "native" && step >= 3000 ? 1.12 : 1.0; };
  Simulator simulator(world);
  simulator.run(2999);
  ASSERT_EQ(simulator.outcome().chosen, "native");
  simulator.run(500);
  EXPECT_EQ(simulator.outcome().chosen, "eager") << "seed 6";
}

TEST(DriftGuard, StaysWhenTheWholeMachineSlowsDown) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    World world = makeWorld(seed);
    world.machine = [](int64_t step) { return step > 3000 ? 2.0 : 1.0; };
    Simulator simulator(world);
    simulator.run(30000);
    EXPECT_EQ(simulator.outcome().chosen, "native") << "seed " << seed;
    EXPECT_TRUE(simulator.outcome().rollbacks.empty()) << "seed " << seed;
  }
}

TEST(DriftGuard, RunsAtMostItsShareOfStepsEagerly) {
  World world = makeWorld(9);
  Simulator simulator(world);
  simulator.run(2000);
  const int64_t before = simulator.outcome().stepsByArm.at("eager");
  simulator.run(50000);
  const int64_t eager = simulator.outcome().stepsByArm.at("eager") - before;
  EXPECT_GT(eager, 100) << "it does check";
  EXPECT_LE(eager, 50000 * 0.005 + 8) << "seed 9";
}

TEST(DriftGuard, MeasuresAgainAfterARollbackButNotForEver) {
  World world = makeWorld(3);
  world.config.maxRetunes = 2;
  world.config.retuneAfterSteps = 500;
  // Good, then bad, then good again.
  world.change = [](const std::string& arm, int64_t step) {
    return arm == "native" && step > 5000 && step < 6500 ? 2.0 : 1.0;
  };
  Simulator simulator(world);
  simulator.run(6000);
  EXPECT_EQ(simulator.outcome().rollbacks.size(), 1u);
  simulator.run(8000);
  const Outcome outcome = simulator.outcome();
  EXPECT_EQ(outcome.chosen, "native") << "seed 3: " << outcome.reason;
  EXPECT_EQ(outcome.compiles.at("native"), 1) << "measuring again compiles nothing";
}

TEST(DriftGuard, ConfirmsADatabaseDecisionSoon) {
  World world = makeWorld(4);
  world.mode = Mode::kAuto;
  world.arms[0].ratio = 1.2;  // the stored decision is wrong for this machine
  Simulator simulator(world);
  ASSERT_TRUE(simulator.tuner().report(Adopted{"native"}).isOk());
  simulator.run(400);
  EXPECT_EQ(simulator.outcome().rollbacks.size(), 1u);
  EXPECT_EQ(simulator.outcome().chosen, "eager");
}

TEST(DriftGuard, RestsAfterALongBurst) {
  constexpr int64_t kBlockSteps = 500;
  DriftGuard guard{TunerConfig()};
  guard.start(false);
  double level = 1;
  const auto slowDown = [&guard, &level] {
    for (int step = 0; step < 64; ++step) guard.addSteadyStep(0, step < 32 ? level : 2 * level);
    level *= 2;
  };
  slowDown();
  ASSERT_TRUE(guard.isBursting());
  int64_t burst = 0;
  for (; guard.isBursting(); burst += kBlockSteps) {
    guard.addSteps(kBlockSteps, kBlockSteps / 2);
    guard.finishBlock();
  }
  guard.addSteps(49 * burst, 0);
  slowDown();
  EXPECT_FALSE(guard.isBursting()) << "a burst of " << burst << " steps";
  guard.addSteps(burst, 0);
  slowDown();
  EXPECT_TRUE(guard.isBursting()) << "a burst of " << burst << " steps";
}

TEST(DriftGuard, LetsTheDriverKeepSilentAfterABurstHasSpentTheShareOfEagerSteps) {
  constexpr int64_t kEagerSteps = 4;
  DriftGuard guard{TunerConfig{}};
  guard.start(false);
  guard.suspect();
  while (guard.isBursting()) {
    guard.addSteps(2 * kEagerSteps, kEagerSteps);
    guard.finishBlock();
  }
  int64_t numReported = 0;
  int64_t numSteps = 0;
  while (!guard.isRecheckDue(kEagerSteps)) {
    const int64_t quiet = guard.quietSteps(kEagerSteps);
    guard.addSteps(quiet + 1, 0);
    guard.addSteadyStep(0, 0.01);
    numReported += 1;
    numSteps += quiet + 1;
  }
  EXPECT_GT(numSteps, 1000);
  EXPECT_LT(numReported, numSteps / 8) << "of " << numSteps << " steps";
}

TEST(DriftGuard, LetsTheDriverKeepSilentBetweenChecks) {
  DriftGuard guard{TunerConfig{}};
  guard.start(false);
  EXPECT_EQ(guard.quietSteps(4), 0);
  for (int i = 0; i < 16; ++i) {
    guard.addSteps(1, 0);
    guard.addSteadyStep(0, 0.01);
  }
  EXPECT_GT(guard.quietSteps(4), 100);
  guard.addSteps(guard.quietSteps(4), 0);
  guard.addSteps(1, 0);
  guard.addSteadyStep(0, 0.01);
  EXPECT_EQ(guard.quietSteps(4), 0);
}

}  // namespace
}  // namespace agspeed::runtime::tune

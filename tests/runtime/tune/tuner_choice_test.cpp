// SPDX-License-Identifier: Apache-2.0
// The tuner chooses the right arm, on simulated machines and with many seeds. A failure names seed, noise and arms.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/runtime/tune/simulator.h"

namespace agspeed::runtime::tune {
namespace {

using ::testing::HasSubstr;
using testing::Noise;
using testing::SimulatedArm;
using testing::Simulator;
using testing::World;

constexpr int kSeeds = 30;

std::map<std::string, Noise> noises() {
  return {{"2 %", {.sigma = 0.02}},
          {"4 % with tails", {.sigma = 0.04, .tailProbability = 0.03}},
          {"bursts", {.sigma = 0.02, .burstEvery = 150}},
          {"two modes", {.sigma = 0.02, .slowModeProbability = 0.2}}};
}

World makeWorld(uint64_t seed, Mode mode, const Noise& noise, const std::vector<double>& ratios) {
  World world;
  world.seed = seed;
  world.mode = mode;
  world.noise = noise;
  world.captureSeconds = 0.2;
  for (size_t i = 0; i < ratios.size(); ++i) {
    world.arms.push_back(
        {.name = "arm" + std::to_string(i), .ratio = ratios[i], .compileSeconds = 1, .loadSeconds = 0.05});
  }
  return world;
}

std::string decide(World world) {
  Simulator simulator(std::move(world));
  for (int i = 0; i < 400 && simulator.tuner().phase() != Phase::kSettled; ++i) simulator.run(25);
  return simulator.tuner().decision() ? simulator.tuner().decision()->arm : "undecided";
}

/// Returns how often the named arm is chosen over all seeds, in percent.
double percentChosen(const std::string& arm, Mode mode, const Noise& noise, const std::vector<double>& ratios) {
  int numChosen = 0;
  for (int seed = 1; seed <= kSeeds; ++seed) {
    numChosen += decide(makeWorld(static_cast<uint64_t>(seed), mode, noise, ratios)) == arm ? 1 : 0;
  }
  return 100.0 * numChosen / kSeeds;
}

TEST(TunerChoice, ShapesThatTakeTurnsNeverKeepInStepWithTheBlocks) {
  for (int32_t numShapes = 2; numShapes <= 12; ++numShapes) {
    for (size_t numArms = 1; numArms <= 5; ++numArms) {
      std::vector<double> ratios(numArms, 0.95);
      ratios.back() = 0.7;
      World world = makeWorld(7, Mode::kMax, {.sigma = 0.02}, ratios);
      world.numShapes = numShapes;
      world.doShapesTakeTurns = true;
      EXPECT_EQ(decide(world), world.arms.back().name) << numShapes << " shapes, " << numArms << " arms";
    }
  }
}

TEST(TunerChoice, ManyShapesInTurnMeet) {
  for (const int32_t numShapes : {20, 64, 66, 68, 100, 300}) {
    World world = makeWorld(7, Mode::kMax, {.sigma = 0.02}, {0.95, 0.7});
    world.numShapes = numShapes;
    world.doShapesTakeTurns = true;
    EXPECT_EQ(decide(world), "arm1") << numShapes << " shapes";
  }
}

TEST(TunerChoice, ShapesThatNeverMeetEndTheTuning) {
  for (const Mode mode : {Mode::kMax, Mode::kAuto}) {
    for (const int64_t numAlike : {0, 3, 40}) {
      Simulator simulator(makeWorld(7, mode, {.sigma = 0.02}, {0.95, 1.2}));
      simulator.run(numAlike);
      simulator.world().numShapes = 1 << 30;
      simulator.run(4000);
      EXPECT_EQ(simulator.outcome().chosen, "eager") << toString(mode) << " after " << numAlike << " of one shape";
      EXPECT_THAT(simulator.outcome().reason, HasSubstr("hardly any batch has the shape of an earlier one"));
    }
  }
  World world = makeWorld(7, Mode::kMax, {.sigma = 0.02}, {1.2});
  world.numShapes = 20000;  // so that a shape is rarely repeated
  EXPECT_EQ(decide(world), "eager");
}

TEST(TunerChoice, IdenticalArmsStayEager) {
  for (const auto& [name, noise] : noises()) {
    EXPECT_EQ(percentChosen("eager", Mode::kMax, noise, {1, 1, 1}), 100) << name << ", seeds 1.." << kSeeds;
    EXPECT_EQ(percentChosen("eager", Mode::kAuto, noise, {1, 1}), 100) << name << ", seeds 1.." << kSeeds;
  }
}

TEST(TunerChoice, SlowerArmsAreNeverChosen) {
  for (const auto& [name, noise] : noises()) {
    for (const double ratio : {1.01, 1.05, 1.5, 20.0}) {
      EXPECT_EQ(percentChosen("eager", Mode::kMax, noise, {ratio}), 100) << name << ", ratio " << ratio;
    }
  }
}

TEST(TunerChoice, OnePercentIsNotWorthASwitch) {
  EXPECT_GE(percentChosen("eager", Mode::kMax, noises().at("2 %"), {0.99}), 95);
}

TEST(TunerChoice, ThreePercentIsFound) {
  for (const auto& [name, noise] : noises()) {
    EXPECT_GE(percentChosen("arm0", Mode::kMax, noise, {0.97}), 75) << name;
    EXPECT_GE(percentChosen("arm0", Mode::kAuto, noise, {0.97}), 75) << name;
  }
}

TEST(TunerChoice, MaxModeStopsMeasuringWhatCannotWin) {
  // On a noisy machine no interval becomes narrow. Without an early end every arm would take all 200 pairs.
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    Simulator simulator(makeWorld(seed, Mode::kMax, {.sigma = 0.08}, {0.6, 0.9, 0.8}));
    for (int i = 0; i < 400 && simulator.tuner().phase() != Phase::kSettled; ++i) simulator.run(25);
    ASSERT_TRUE(simulator.tuner().decision().has_value()) << "seed " << seed;
    EXPECT_EQ(simulator.tuner().decision()->arm, "arm0") << "seed " << seed;
    const auto steps = simulator.outcome().stepsByArm;
    EXPECT_LT(2 * steps.at("arm1"), steps.at("arm0")) << "seed " << seed;
    EXPECT_LT(2 * steps.at("arm2"), steps.at("arm0")) << "seed " << seed;
  }
}

TEST(TunerChoice, ThirtyPercentIsAlwaysFound) {
  for (const auto& [name, noise] : noises()) {
    EXPECT_EQ(percentChosen("arm0", Mode::kMax, noise, {0.7}), 100) << name;
    EXPECT_GE(percentChosen("arm0", Mode::kAuto, noise, {0.7}), 98) << name;
  }
}

TEST(TunerChoice, TheBestOfSeveralWins) {
  for (const auto& [name, noise] : noises()) {
    EXPECT_GE(percentChosen("arm2", Mode::kMax, noise, {0.99, 0.9, 0.7, 1.2}), 98) << name;
    EXPECT_GE(percentChosen("arm1", Mode::kMax, noise, {0.73, 0.7}), 90) << name << " (direct pairs)";
    EXPECT_GE(percentChosen("arm0", Mode::kMax, noise, {0.7, 0.73}), 90) << name << " (direct pairs)";
  }
}

TEST(TunerChoice, AnArmThatLostToOneThatFallsBackIsTriedAgain) {
  for (int64_t fallsBackAt = 100; fallsBackAt <= 500; fallsBackAt += 20) {
    World world = makeWorld(static_cast<uint64_t>(fallsBackAt), Mode::kMax, {.sigma = 0.05}, {0.84, 0.88});
    world.change = [=](const std::string& arm, int64_t step) {
      return arm == "arm0" && step > fallsBackAt ? 1 / 0.84 : 1.0;
    };
    EXPECT_NE(decide(world), "eager") << "arm0 is no faster than eager from step " << fallsBackAt;
  }
}

TEST(TunerChoice, SurvivesAMachineThatSlowsDown) {
  for (int seed = 1; seed <= kSeeds; ++seed) {
    World world = makeWorld(static_cast<uint64_t>(seed), Mode::kMax, noises().at("2 %"), {1.0, 0.95});
    world.machine = [](int64_t step) { return 1 + 0.002 * static_cast<double>(step); };
    EXPECT_EQ(decide(world), "arm1") << "seed " << seed;
  }
}

TEST(TunerChoice, MicrosecondStepsAreMeasuredInRuns) {
  const Noise noise{.sigma = 0.08, .tailProbability = 0.03};
  int numRight = 0;
  for (int seed = 1; seed <= kSeeds; ++seed) {
    World world = makeWorld(static_cast<uint64_t>(seed), Mode::kMax, noise, {1.0, 0.96});
    world.eagerSeconds = 0.0004;
    numRight += decide(world) == "arm1" ? 1 : 0;
  }
  EXPECT_GE(numRight, kSeeds * 0.95) << "seeds 1.." << kSeeds;
}

TEST(TunerChoice, PairsWithinChangingShapes) {
  for (int seed = 1; seed <= 20; ++seed) {
    World world = makeWorld(static_cast<uint64_t>(seed), Mode::kMax, noises().at("2 %"), {0.9, 1.0});
    world.numShapes = 8;  // step times differ up to 4.5 times between shapes
    EXPECT_EQ(decide(world), "arm0") << "seed " << seed;
    world.arms[0].ratio = 1.0;
    EXPECT_EQ(decide(world), "eager") << "seed " << seed;
  }
}

TEST(TunerChoice, WarmUpOfAnArmIsForgiven) {
  World world = makeWorld(2, Mode::kMax, noises().at("2 %"), {0.8});
  world.arms[0].warmupFactor = 20;
  world.arms[0].warmupSteps = 3;
  EXPECT_EQ(decide(world), "arm0");
}

TEST(TunerChoice, RareSlowStepsOfAnArmAreSeen) {
  // Nine of ten steps are 5 % faster, and the tenth takes four times as long, so the sum is slower.
  int numEager = 0;
  for (int seed = 1; seed <= kSeeds; ++seed) {
    World world = makeWorld(static_cast<uint64_t>(seed), Mode::kMax, noises().at("2 %"), {0.95});
    world.arms[0].slowProbability = 0.1;
    world.arms[0].slowFactor = 4;
    numEager += decide(world) == "eager" ? 1 : 0;
  }
  EXPECT_GE(numEager, kSeeds * 0.95);
}

TEST(TunerChoice, AnArmThatNeedsTooMuchMemoryLoses) {
  World world = makeWorld(1, Mode::kMax, noises().at("2 %"), {0.5, 0.8});
  world.arms[0].peakBytes = int64_t{140} << 20;  // eager: 100 MiB, allowed 115 + 16
  Simulator simulator(world);
  simulator.run(2000);
  ASSERT_TRUE(simulator.tuner().decision().has_value());
  EXPECT_EQ(simulator.tuner().decision()->arm, "arm1");
  EXPECT_NE(simulator.tuner().snapshot().find("needs 140.0 MiB at its peak, eager 100.0 MiB"), std::string::npos);
  EXPECT_NE(simulator.tuner().snapshot().find(R"("is_too_large":true)"), std::string::npos);
  world.arms[0].peakBytes = int64_t{130} << 20;
  EXPECT_EQ(decide(world), "arm0");
}

}  // namespace
}  // namespace agspeed::runtime::tune

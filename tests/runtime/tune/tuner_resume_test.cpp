// SPDX-License-Identifier: Apache-2.0
// A tuner continues with the findings of an earlier one that could not decide.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/runtime/tune/simulator.h"

namespace agspeed::runtime::tune {
namespace {

using ::testing::HasSubstr;
using testing::Simulator;
using testing::World;

World makeWorld(uint64_t seed) {
  World world;
  world.seed = seed;
  world.mode = Mode::kMax;
  world.captureSeconds = 0.2;
  world.noise.sigma = 0.03;
  world.arms = {{.name = "native", .ratio = 0.93, .compileSeconds = 0.4, .loadSeconds = 0.1},
                {.name = "slow", .ratio = 1.2, .compileSeconds = 0.4, .loadSeconds = 0.1}};
  return world;
}

int64_t stepsUntilDecided(Simulator& simulator) {
  while (simulator.tuner().phase() != Phase::kSettled) simulator.run(1);
  return simulator.outcome().decidedAtStep;
}

/// Runs until `numBlocks` findings exist. Returns the findings that an exit would leave behind.
std::string interruptedFindings(World world, int32_t numBlocks) {
  Simulator simulator(std::move(world));
  while (simulator.tuner().numFindings() < numBlocks) simulator.run(1);
  EXPECT_NE(simulator.tuner().phase(), Phase::kSettled);
  return simulator.tuner().findings();
}

size_t numPairs(const std::string& findings) {
  size_t count = 0;
  const std::vector<ArmFindings> arms = parseFindings(findings).value();
  for (const ArmFindings& arm : arms) count += arm.pairs.size();
  return count;
}

TEST(Resume, FinishedPairsCountAndTheDecisionComesSooner) {
  int64_t stepsSaved = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    World world = makeWorld(seed);
    const std::string findings = interruptedFindings(world, 8);
    Simulator fresh(world);
    world.findings = findings;
    world.seed += 1000;
    Simulator resumed(world);
    resumed.run(2);
    EXPECT_EQ(static_cast<size_t>(resumed.tuner().numResumedPairs()), numPairs(findings)) << "seed " << seed;
    EXPECT_THAT(resumed.tuner().findings(), HasSubstr("\"name\":\"native\""));
    stepsSaved += stepsUntilDecided(fresh) - stepsUntilDecided(resumed);
    EXPECT_EQ(resumed.outcome().chosen, "native") << "seed " << seed;
  }
  EXPECT_GT(stepsSaved, 0);
}

TEST(Resume, AnArmThatLostIsNotCompiledAgainAndKeepsItsReason) {
  World world = makeWorld(3);
  Simulator first(world);
  while (first.tuner().findings().find("\"verdict\":\"lost\"") == std::string::npos) first.run(1);
  world.findings = first.tuner().findings();
  Simulator second(world);
  stepsUntilDecided(second);
  EXPECT_EQ(second.outcome().compiles.count("slow"), 0u);
  EXPECT_EQ(second.outcome().stepsByArm.count("slow"), 0u);
  EXPECT_EQ(second.outcome().chosen, "native");
  EXPECT_THAT(second.tuner().snapshot(), HasSubstr("in an earlier run: "));
  EXPECT_THAT(second.tuner().findings(), ::testing::Not(HasSubstr("in an earlier run: ")));
}

TEST(Resume, EverythingLostEndsInEagerWithoutACompile) {
  World world = makeWorld(3);
  world.findings =
      R"({"version":1,"arms":[{"name":"native","verdict":"lost","reason":"r","beaten_by":"slow","pairs":[]},
                              {"name":"slow","verdict":"lost","reason":"r","beaten_by":"","pairs":[]}]})";
  Simulator simulator(world);
  stepsUntilDecided(simulator);
  EXPECT_TRUE(simulator.outcome().compiles.empty());
  EXPECT_THAT(simulator.outcome().reason, HasSubstr("no candidate is at least"));
}

TEST(Resume, AnArmBeatenByOneThatDoesNotExistIsInTheRace) {
  World world = makeWorld(3);
  world.findings =
      R"({"version":1,"arms":[{"name":"native","verdict":"lost","reason":"r","beaten_by":"gone","pairs":[]}]})";
  Simulator simulator(world);
  stepsUntilDecided(simulator);
  EXPECT_EQ(simulator.outcome().chosen, "native");
}

TEST(Resume, PairsThatOwnOnesContradictAreDropped) {
  World world = makeWorld(5);
  std::string pairs;
  for (int i = 0; i < 40; ++i) pairs += (i ? "," : "") + std::string("[1000000,2000000,1000000,2000000]");
  world.arms.pop_back();
  world.findings = R"({"version":1,"arms":[{"name":"native","verdict":"open","pairs":[)" + pairs + "]}]}";
  Simulator simulator(world);
  stepsUntilDecided(simulator);
  EXPECT_EQ(simulator.tuner().numResumedPairs(), 0);
  EXPECT_THAT(simulator.tuner().snapshot(), HasSubstr("pairs of this run contradict an earlier one's"));
}

TEST(Resume, NoArmIsAcceptedByEarlierPairsAlone) {
  World world = makeWorld(5);
  std::string pairs;
  for (int i = 0; i < 100; ++i) pairs += (i ? "," : "") + std::string("[1000000,930000,1000000,930000]");
  world.arms.pop_back();
  world.findings = R"({"version":1,"arms":[{"name":"native","verdict":"open","pairs":[)" + pairs + "]}]}";
  Simulator simulator(world);
  stepsUntilDecided(simulator);
  EXPECT_EQ(simulator.outcome().chosen, "native");
  EXPECT_GE(simulator.tuner().decision()->ratio->count, 104);
}

TEST(Resume, FindingsOfAnArmToComeWaitForIt) {
  World world = makeWorld(5);
  world.findings =
      R"({"version":1,"arms":[{"name":"native+r2:slow","verdict":"open","pairs":[[1000000,930000,1000000,930000]]}]})";
  Simulator simulator(world);
  simulator.run(2);
  EXPECT_EQ(simulator.tuner().numResumedPairs(), 0);
  EXPECT_EQ(numPairs(simulator.tuner().findings()), 1u);
  ASSERT_TRUE(simulator.tuner().report(ArmAdded{{"native+r2:slow"}}).isOk());
  EXPECT_EQ(simulator.tuner().numResumedPairs(), 1);
}

TEST(Resume, DamagedOrForeignFindingsAreRefusedWithTheReason) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "no list of arms"},
      {"[]", "no list of arms"},
      {R"({"version":2,"arms":[]})", "version"},
      {R"({"arms":[]})", "version"},
      {R"({"version":1,"arms":[7]})", "not an object"},
      {R"({"version":1,"arms":[{}]})", "no name"},
      {R"({"version":1,"arms":[{"name":"native","pairs":7}]})", "not a list"},
      {R"({"version":1,"arms":[{"name":"native","pairs":[[1,2,3]]}]})", "not four times"},
      {R"({"version":1,"arms":[{"name":"native","pairs":[[1,2,3,0]]}]})", "whole number"},
      {R"({"version":1,"arms":[{"name":"native","pairs":[],"duel":[]}]})", "duel"},
  };
  for (const auto& [text, reason] : cases) {
    TunerConfig config;
    config.mode = Mode::kMax;
    config.arms = {{"native"}};
    std::unique_ptr<Tuner> tuner = Tuner::create(config).value();
    tuner->advance();
    (void)tuner->report(CaptureFinished{0.1});
    const std::string before = tuner->findings();
    EXPECT_THAT(tuner->report(Resumed{text}).message(), HasSubstr(reason)) << text;
    EXPECT_EQ(tuner->findings(), before) << text;
  }
}

TEST(Resume, IsRefusedBeforeTheCapture) {
  TunerConfig config;
  config.arms = {{"native"}};
  std::unique_ptr<Tuner> tuner = Tuner::create(config).value();
  EXPECT_FALSE(tuner->report(Resumed{R"({"version":1,"arms":[]})"}).isOk());
}

}  // namespace
}  // namespace agspeed::runtime::tune

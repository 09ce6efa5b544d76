// SPDX-License-Identifier: Apache-2.0
// The actions of each mode, step by step, and the effects of events on them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tests/runtime/tune/simulator.h"

namespace agspeed::runtime::tune {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Outcome;
using testing::SimulatedArm;
using testing::Simulator;
using testing::World;

std::unique_ptr<Tuner> makeTuner(Mode mode, std::vector<ArmSpec> arms) {
  TunerConfig config;
  config.mode = mode;
  config.searchFraction = 0.10;
  config.arms = std::move(arms);
  return Tuner::create(config).value();
}

std::vector<std::string> advance(Tuner& tuner) {
  std::vector<std::string> texts;
  for (const Action& action : tuner.advance()) texts.push_back(std::string(toString(action.kind)) + " " + action.arm);
  return texts;
}

World makeWorld(Mode mode) {
  World world;
  world.mode = mode;
  world.seed = 7;
  world.arms = {{.name = "native", .ratio = 0.8, .compileSeconds = 0.4, .loadSeconds = 0.1},
                {.name = "inductor", .ratio = 0.6, .compileSeconds = 12, .loadSeconds = 1}};
  return world;
}

TEST(TunerConfig, RefusesNonsenseWithASentence) {
  TunerConfig config;
  config.arms = {{"eager"}};
  EXPECT_THAT(Tuner::create(config).status().message(), HasSubstr("listed twice"));
  config.arms = {{"native"}};
  config.pinnedArm = "inductor";
  EXPECT_THAT(Tuner::create(config).status().message(), HasSubstr("\"inductor\" is not among the arms"));
  config.pinnedArm.clear();
  config.maxPairs = 3;
  EXPECT_THAT(Tuner::create(config).status().message(), HasSubstr("maxPairs"));
  EXPECT_THAT(parseMode("fast").status().message(), HasSubstr("mode \"fast\" is unknown"));
}

TEST(AutoMode, StartsWithEagerAndEarnsTheCapture) {
  std::unique_ptr<Tuner> tuner = makeTuner(Mode::kAuto, {{"native"}});
  for (int i = 0; i < 1000; ++i) {
    EXPECT_THAT(advance(*tuner), IsEmpty()) << "step " << i;
    ASSERT_TRUE(tuner->report(StepFinished{"eager", 0.01, "s", 0, false}).isOk());
  }
  EXPECT_EQ(tuner->status(), "tuning");
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(tuner->report(StepFinished{"eager", 0.01, "s", 0, false}).isOk());
  EXPECT_THAT(advance(*tuner), ElementsAre("capture eager"));
}

TEST(AutoMode, CompilesInTheBackgroundAndRunsTheBestArmMeanwhile) {
  Simulator simulator(makeWorld(Mode::kAuto));
  simulator.run(12000);
  const Outcome outcome = simulator.outcome();
  ASSERT_TRUE(simulator.tuner().decision().has_value());
  EXPECT_EQ(simulator.tuner().decision()->arm, "inductor");
  EXPECT_GT(outcome.stepsByArm.at("native"), 500) << "the first proven arm runs while the next one compiles";
}

TEST(AutoMode, LoadsOnlyWhenItCanPay) {
  std::unique_ptr<Tuner> tuner = makeTuner(Mode::kAuto, {{"inductor", 5, 2}});
  for (int i = 0; i < 1100; ++i) ASSERT_TRUE(tuner->report(StepFinished{"eager", 0.01, "s", 0, false}).isOk());
  EXPECT_THAT(advance(*tuner), ElementsAre("capture eager"));
  (void)tuner->report(CaptureFinished{0.5});
  EXPECT_THAT(advance(*tuner), ElementsAre("compile inductor"));
  ASSERT_TRUE(tuner->report(ArmChanged{"inductor", ArmState::kCompiled, "", 5, 0}).isOk());
  EXPECT_THAT(advance(*tuner), IsEmpty()) << "2 s of load are not earned after 11 s";
  for (int i = 0; i < 2000; ++i) ASSERT_TRUE(tuner->report(StepFinished{"eager", 0.01, "s", 0, false}).isOk());
  EXPECT_THAT(advance(*tuner), ElementsAre("load inductor"));
}

TEST(AutoMode, RaisesAndSuspendsACompileAsTheBudgetAllows) {
  std::unique_ptr<Tuner> tuner = makeTuner(Mode::kAuto, {{"inductor", 5, 0}});
  for (int i = 0; i < 3000; ++i) ASSERT_TRUE(tuner->report(StepFinished{"eager", 0.01, "s", 0, false}).isOk());
  advance(*tuner);
  (void)tuner->report(CaptureFinished{1.0});
  EXPECT_THAT(advance(*tuner), ElementsAre("compile inductor"));
  const std::vector<Action> raised = tuner->advance();
  ASSERT_EQ(raised.size(), 1u);
  EXPECT_EQ(raised[0].level, Level::kRaised);
  EXPECT_GT(raised[0].seconds, 0.5);
  EXPECT_LT(raised[0].seconds, 4);
  std::vector<Level> levels;
  for (int i = 0; i < 1000 && levels.size() < 2; ++i) {
    ASSERT_TRUE(tuner->report(StepFinished{"eager", 0.02, "s", 0, false}).isOk());
    for (const Action& action : tuner->advance()) {
      if (action.level != Level::kRaised) levels.push_back(action.level);
    }
  }
  EXPECT_THAT(levels, ElementsAre(Level::kIdle, Level::kSuspended)) << "first the earned part ends, then all of it";
  EXPECT_LE(tuner->ledger().slowdownSeconds(), 0.1 * tuner->ledger().trainedSeconds());
}

/// Runs steps of `tuner`, each with the time of its arm. Returns the actions that it asked for.
std::set<std::string> step(Tuner& tuner, int count, const std::map<std::string, double>& seconds) {
  std::set<std::string> seen;
  for (int i = 0; i < count; ++i) {
    EXPECT_TRUE(tuner.report(StepFinished{tuner.current(), seconds.at(std::string(tuner.current())), "s"}).isOk());
    for (const std::string& text : advance(tuner)) seen.insert(text);
  }
  return seen;
}

TEST(MaxMode, MeasuresWhatIsReadyBesideACompileWithCoresOfItsOwn) {
  TunerConfig config;
  config.mode = Mode::kMax;
  config.hasSpareCores = true;
  config.arms = {{"native"}, {"inductor", 15, 3}};
  std::unique_ptr<Tuner> tuner = Tuner::create(config).value();
  EXPECT_THAT(advance(*tuner), ElementsAre("capture eager"));
  (void)tuner->report(CaptureFinished{1});
  const std::vector<Action> first = tuner->advance();
  ASSERT_EQ(first.size(), 2u);
  EXPECT_EQ(first[0].arm, "inductor") << "the longest work starts first";
  EXPECT_EQ(first[0].level, Level::kRaised);
  EXPECT_EQ(first[1].arm, "native");
  ASSERT_TRUE(tuner->report(ArmChanged{"inductor", ArmState::kCompiling, "", 0, 0}).isOk());
  ASSERT_TRUE(tuner->report(ArmChanged{"native", ArmState::kCompiled, "", 0, 0}).isOk());
  EXPECT_THAT(advance(*tuner), ElementsAre("load native")) << "a capture of 1 s needs no rest";
  ASSERT_TRUE(tuner->report(ArmChanged{"native", ArmState::kReady, "", 0, 0.4}).isOk());
  const std::set<std::string> seen = step(*tuner, 60, {{"eager", 0.2}, {"native", 0.16}});
  EXPECT_EQ(tuner->current(), "native") << "proven, while inductor is being compiled";
  EXPECT_THAT(seen, ::testing::IsSupersetOf({"run native", "run eager", "priority inductor"}));
}

TEST(MaxMode, WithoutSuchCoresNothingDelaysTheFirstCompile) {
  std::unique_ptr<Tuner> tuner = makeTuner(Mode::kMax, {{"native"}, {"inductor", 15, 3}, {"slower", 15, 3}});
  const std::map<std::string, double> seconds = {{"eager", 0.2}, {"native", 0.16}, {"inductor", 0.1}};
  EXPECT_THAT(advance(*tuner), ElementsAre("capture eager"));
  (void)tuner->report(CaptureFinished{1});
  EXPECT_THAT(advance(*tuner), ElementsAre("compile inductor"));
  ASSERT_TRUE(tuner->report(ArmChanged{"inductor", ArmState::kCompiling, "", 0, 0}).isOk());
  std::set<std::string> seen = step(*tuner, 30, seconds);
  EXPECT_THAT(seen, ::testing::Contains("wait inductor"));
  EXPECT_THAT(seen, ::testing::Not(::testing::Contains("compile native"))) << "a load delays the compile";
  ASSERT_TRUE(tuner->report(ArmChanged{"inductor", ArmState::kCompiled, "", 15, 0}).isOk());
  EXPECT_THAT(step(*tuner, 1, seconds), ::testing::Contains("load inductor"));
  ASSERT_TRUE(tuner->report(ArmChanged{"inductor", ArmState::kReady, "", 0, 1}).isOk());
  seen = step(*tuner, 5, seconds);
  EXPECT_THAT(seen, ::testing::Contains("run inductor"));
  EXPECT_THAT(seen, ::testing::Not(::testing::Contains("compile native"))) << "what is ready is measured first";
  seen = step(*tuner, 110, seconds);
  EXPECT_EQ(tuner->current(), "inductor");
  EXPECT_THAT(seen, ::testing::Contains("compile native"));
  EXPECT_THAT(seen, ::testing::Not(::testing::Contains("compile slower"))) << "before another compile";
}

World makeSlowSteps(double eagerSeconds, bool hasSpareCores) {
  World world;
  world.mode = Mode::kMax;
  world.seed = 11;
  world.eagerSeconds = eagerSeconds;
  world.captureSeconds = 3;
  world.config.hasSpareCores = hasSpareCores;
  world.arms = {{.name = "native", .ratio = 0.93, .compileSeconds = 0, .loadSeconds = 4},
                {.name = "inductor", .ratio = 0.8, .compileSeconds = 40, .loadSeconds = 6},
                {.name = "inductor-max-autotune", .ratio = 0.8, .compileSeconds = 50, .loadSeconds = 6},
                {.name = "aot", .ratio = 0.99, .compileSeconds = 0, .loadSeconds = 3, .standsInFor = "native"}};
  return world;
}

TEST(MaxMode, TrainingNeverStandsStillForLong) {
  for (const double eagerSeconds : {0.02, 0.2, 2.0}) {
    for (const bool hasSpareCores : {false, true}) {
      World world = makeSlowSteps(eagerSeconds, hasSpareCores);
      world.arms[0].loadSeconds = 24;  // eight regions of 3 s
      world.arms[0].numParts = 8;
      Simulator simulator(world);
      simulator.run(4000);
      EXPECT_NE(simulator.tuner().status(), "tuning") << eagerSeconds << ", " << hasSpareCores;
      EXPECT_LE(simulator.outcome().longestPause, 10) << "steps of " << eagerSeconds << " s, spare: " << hasSpareCores;
    }
  }
}

TEST(MaxMode, ALargeGainRunsSoonAfterItsCompile) {
  // Without other arms, capture, compile and load take 49 s. Eager, native and inductor share 100 steps or fewer.
  for (const double eagerSeconds : {0.1, 0.3}) {
    Simulator simulator(makeSlowSteps(eagerSeconds, false));
    while (simulator.tuner().current() != "inductor" || simulator.outcome().stepsByArm.at("inductor") < 40) {
      simulator.run(1);
      ASSERT_LT(simulator.outcome().wallSeconds, 1000);
    }
    EXPECT_LE(simulator.outcome().wallSeconds, 1.3 * 49 + 100 * eagerSeconds) << "steps of " << eagerSeconds << " s";
  }
}

TEST(MaxMode, TheFirstCompiledArmRunsForAWhileBeforeAnythingElse) {
  for (const double eagerSeconds : {0.02, 0.1, 0.3}) {
    Simulator simulator(makeSlowSteps(eagerSeconds, false));
    int64_t streak = 0;
    int64_t longest = 0;
    while (simulator.outcome().stepsByArm.count("native") == 0 && simulator.outcome().wallSeconds < 1000) {
      const double stoodStill = simulator.tuner().ledger().foregroundSeconds();
      const int64_t before = simulator.outcome().stepsByArm["inductor"];
      simulator.run(1);
      const bool isPlain = simulator.tuner().ledger().foregroundSeconds() == stoodStill;
      streak = isPlain && simulator.outcome().stepsByArm["inductor"] > before ? streak + 1 : 0;
      longest = std::max(longest, streak);
    }
    EXPECT_GE(longest, 20) << "steps of " << eagerSeconds << " s";
    EXPECT_LE(longest, 70) << "steps of " << eagerSeconds << " s";
  }
}

/// Runs until the compile of `arm` has begun. Returns the number of steps from then until training stands still.
int64_t stepsBeforeStandstill(Simulator& simulator, const std::string& arm) {
  while (simulator.outcome().compiles.count(arm) == 0 && simulator.outcome().wallSeconds < 1000) simulator.run(1);
  EXPECT_EQ(simulator.outcome().compiles.count(arm), 1u) << arm << " is never compiled";
  const double stoodStill = simulator.tuner().ledger().foregroundSeconds();
  int64_t numSteps = 0;
  for (; simulator.tuner().ledger().foregroundSeconds() == stoodStill && numSteps < 1000; ++numSteps) simulator.run(1);
  return numSteps;
}

TEST(MaxMode, WhatIsProvenRunsBeforeTrainingWaitsForALaterCompile) {
  for (const double eagerSeconds : {0.02, 0.1, 0.3}) {
    World world = makeSlowSteps(eagerSeconds, false);
    Simulator simulator(world);
    EXPECT_LE(stepsBeforeStandstill(simulator, "inductor"), 1) << "nothing is known to be faster yet";
    while (simulator.outcome().compiles.count("inductor-max-autotune") == 0) simulator.run(1);
    const double trained = simulator.tuner().ledger().trainedSeconds();
    const int64_t before = simulator.outcome().stepsByArm.at("inductor");
    const int64_t numSteps = stepsBeforeStandstill(simulator, "inductor-max-autotune");
    EXPECT_GE(numSteps, 20) << "steps of " << eagerSeconds << " s";
    EXPECT_GE(simulator.outcome().stepsByArm.at("inductor") - before, numSteps - 1) << "they run what is proven";
    EXPECT_LE(simulator.tuner().ledger().trainedSeconds() - trained, world.config.maxPauseSeconds + 2 * eagerSeconds)
        << "a turn is as long as a pause";
  }
}

TEST(MaxMode, ALaterCompileIsNotPutOffForNothing) {
  World world = makeSlowSteps(0.1, false);
  world.arms[2].compileSeconds = 4;
  Simulator quick(world);
  EXPECT_LE(stepsBeforeStandstill(quick, "inductor-max-autotune"), 2) << "one pause is enough for it";
  world = makeSlowSteps(0.1, false);
  for (SimulatedArm& arm : world.arms) arm.ratio = arm.name == "inductor-max-autotune" ? 0.8 : 1.0;
  Simulator slow(world);
  EXPECT_LE(stepsBeforeStandstill(slow, "inductor-max-autotune"), 2) << "nothing is known to be faster";
}

TEST(MaxMode, StepsAndACompileTakeTurnsWithoutCoresToSpare) {
  Simulator alone(makeSlowSteps(0.2, false));
  Simulator beside(makeSlowSteps(0.2, true));
  alone.run(2000);
  beside.run(2000);
  EXPECT_EQ(alone.outcome().stepsBesideCompile, 0);
  EXPECT_GT(beside.outcome().stepsBesideCompile, 100);
  EXPECT_GT(alone.outcome().compiles.at("inductor-max-autotune"), 0);
}

TEST(MaxMode, WhatStandsInForAReadyArmIsNotTried) {
  World world = makeSlowSteps(0.2, false);
  Simulator simulator(world);
  simulator.run(2000);
  EXPECT_EQ(simulator.outcome().stepsByArm.count("aot"), 0u);
  EXPECT_THAT(simulator.tuner().snapshot(), HasSubstr("not needed: native"));
  world.arms[0].outcome = ArmState::kRejected;
  Simulator other(world);
  other.run(2000);
  EXPECT_EQ(other.outcome().stepsByArm.count("aot"), 1u) << "native could not be used";
}

TEST(MaxMode, AClearGainTakesTwelvePairs) {
  World world = makeSlowSteps(0.2, false);
  world.arms = {{.name = "native", .ratio = 0.8, .compileSeconds = 0, .loadSeconds = 1}};
  Simulator simulator(world);
  while (simulator.tuner().snapshot().find("faster than eager: ") == std::string::npos) {
    simulator.run(1);
    ASSERT_LT(simulator.outcome().wallSeconds, 1000);
  }
  EXPECT_THAT(simulator.tuner().snapshot(), HasSubstr("12 pairs"));
}

TEST(MaxMode, BudgetCapSkipsWhatItCannotPay) {
  World world = makeWorld(Mode::kMax);
  world.config.budgetSeconds = 5;
  Simulator simulator(world);
  simulator.run(2000);
  ASSERT_TRUE(simulator.tuner().decision().has_value());
  EXPECT_EQ(simulator.tuner().decision()->arm, "native");
  EXPECT_EQ(simulator.outcome().compiles.count("inductor"), 0u);
  EXPECT_THAT(simulator.tuner().snapshot(), HasSubstr("tuning budget of 5"));
}

TEST(FastStartMode, TakesOnlyWhatIsQuick) {
  Simulator simulator(makeWorld(Mode::kFastStart));
  simulator.run(500);
  ASSERT_TRUE(simulator.tuner().decision().has_value());
  EXPECT_EQ(simulator.tuner().decision()->arm, "native");
  EXPECT_EQ(simulator.outcome().compiles.count("inductor"), 0u);
  EXPECT_LT(simulator.tuner().decision()->step, 200);
}

TEST(FastStartMode, RefusesASlowCapture) {
  World world = makeWorld(Mode::kFastStart);
  world.captureSeconds = 4;
  Simulator simulator(world);
  simulator.run(20);
  EXPECT_EQ(simulator.tuner().status(), "eager");
  EXPECT_THAT(simulator.tuner().statusReason(), HasSubstr("capture takes longer"));
}

TEST(AutoMode, ALoadWaitsUntilWhatItIsExpectedToTakeIsEarned) {
  std::unique_ptr<Tuner> tuner = makeTuner(Mode::kAuto, {{"native", 0, 0.5}});
  const auto train = [&](int numSteps) {
    bool isLoading = false;
    for (int i = 0; i < numSteps; ++i) {
      for (const Action& action : tuner->advance()) {
        isLoading |= action.kind == ActionKind::kLoad;
        if (action.kind == ActionKind::kCapture) {
          (void)tuner->report(CaptureFinished{0});
          (void)tuner->report(LoadsExpected{4});
        }
        if (action.kind != ActionKind::kCompile) continue;
        EXPECT_TRUE(tuner->report(ArmChanged{"native", ArmState::kCompiled, "", 0, 0}).isOk());
      }
      EXPECT_TRUE(tuner->report(StepFinished{"eager", 0.1, "s", 0, false}).isOk());
    }
    return isLoading;
  };
  EXPECT_FALSE(train(400)) << "40 s earn 3.88 s";
  EXPECT_TRUE(train(20)) << "42 s earn 4.07 s";
}

TEST(DeterministicMode, DoesNotDependOnTime) {
  for (const double seconds : {1e-6, 1.0}) {
    std::unique_ptr<Tuner> tuner = makeTuner(Mode::kDeterministic, {{"aot"}, {"native"}, {"inductor"}});
    std::vector<std::string> all;
    for (int i = 0; i < 50; ++i) {
      for (const Action& action : tuner->advance()) {
        all.push_back(std::string(toString(action.kind)) + " " + action.arm);
        if (action.kind == ActionKind::kCapture) (void)tuner->report(CaptureFinished{seconds});
        const bool isRejected = action.arm == "aot";
        const ArmState state = isRejected ? ArmState::kRejected : ArmState::kReady;
        if (action.kind != ActionKind::kWait) continue;
        ASSERT_TRUE(tuner->report(ArmChanged{action.arm, state, "", 0, seconds}).isOk());
      }
      const double slow = tuner->current() == "native" ? 9 : 1;
      ASSERT_TRUE(tuner->report(StepFinished{tuner->current(), seconds * slow, "s", 0, false}).isOk());
    }
    EXPECT_THAT(all, ElementsAre("capture eager", "compile aot", "wait aot", "compile native", "wait native",
                                 "run native", "decide native"));
    EXPECT_EQ(tuner->quietSteps(), Tuner::kForever);
  }
}

TEST(DeterministicMode, PinnedPlanIsTheOnlyOne) {
  World world = makeWorld(Mode::kDeterministic);
  world.config.pinnedArm = "inductor";
  Simulator simulator(world);
  simulator.run(10);
  EXPECT_EQ(simulator.outcome().chosen, "inductor");
  world.arms[1].outcome = ArmState::kRejected;
  Simulator failing(world);
  failing.run(10);
  EXPECT_EQ(failing.outcome().chosen, "eager");
  EXPECT_EQ(failing.outcome().compiles.count("native"), 0u);
}

TEST(CachedDecision, IsTakenWithoutTuning) {
  Simulator simulator(makeWorld(Mode::kAuto));
  ASSERT_TRUE(simulator.tuner().report(Adopted{"inductor"}).isOk());
  simulator.run(3);
  const Outcome outcome = simulator.outcome();
  EXPECT_EQ(outcome.chosen, "inductor");
  EXPECT_TRUE(simulator.tuner().decision()->isFromDatabase);
  EXPECT_EQ(outcome.compiles.count("native"), 0u);
  simulator.run(20000);
  EXPECT_EQ(simulator.outcome().chosen, "inductor");
  EXPECT_LT(simulator.outcome().stepsByArm.at("eager"), 130) << "only the guard runs eager";
}

TEST(CachedDecision, ForEagerCapturesNothing) {
  Simulator simulator(makeWorld(Mode::kAuto));
  ASSERT_TRUE(simulator.tuner().report(Adopted{"eager"}).isOk());
  simulator.run(2000);
  EXPECT_EQ(simulator.outcome().numActions, 1) << "decide, nothing else";
  EXPECT_EQ(simulator.tuner().ledger().foregroundSeconds(), 0);
}

TEST(CachedDecision, ThatFailsIsFollowedByTuning) {
  World world = makeWorld(Mode::kMax);
  world.arms[1].outcome = ArmState::kFailed;
  Simulator simulator(world);
  ASSERT_TRUE(simulator.tuner().report(Adopted{"inductor"}).isOk());
  simulator.run(1000);
  EXPECT_EQ(simulator.outcome().chosen, "native");
  EXPECT_FALSE(simulator.tuner().report(Adopted{"native"}).isOk()) << "too late";
}

TEST(TunerSnapshot, IsTheSameForTheSameTrace) {
  Simulator first(makeWorld(Mode::kAuto));
  Simulator second(makeWorld(Mode::kAuto));
  first.run(6000);
  second.run(6000);
  EXPECT_EQ(first.tuner().snapshot(), second.tuner().snapshot());
  EXPECT_EQ(first.tuner().decisionRecord(), second.tuner().decisionRecord());
}

}  // namespace
}  // namespace agspeed::runtime::tune

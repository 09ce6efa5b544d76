// SPDX-License-Identifier: Apache-2.0
// Arms that fail, drivers that misreport, and rollbacks: eager must always be available.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/runtime/tune/simulator.h"

namespace agspeed::runtime::tune {
namespace {

using ::testing::HasSubstr;
using testing::Outcome;
using testing::Simulator;
using testing::World;

World makeWorld(uint64_t seed, Mode mode) {
  World world;
  world.seed = seed;
  world.mode = mode;
  world.captureSeconds = 0.2;
  world.arms = {{.name = "native", .ratio = 0.8, .compileSeconds = 0.4, .loadSeconds = 0.1},
                {.name = "inductor", .ratio = 0.6, .compileSeconds = 2, .loadSeconds = 0.2}};
  return world;
}

TEST(Tuner, RejectedFailedAndSkippedArmsNeverRun) {
  for (const Mode mode : {Mode::kAuto, Mode::kMax, Mode::kFastStart, Mode::kDeterministic}) {
    for (const ArmState bad : {ArmState::kRejected, ArmState::kFailed, ArmState::kSkipped}) {
      World world = makeWorld(3, mode);
      world.arms[0].outcome = bad;
      world.arms[1].outcome = bad;
      Simulator simulator(world);
      simulator.run(5000);
      const Outcome outcome = simulator.outcome();
      EXPECT_EQ(outcome.stepsByArm.size(), 1u) << toString(mode) << ", " << toString(bad);
      EXPECT_EQ(outcome.chosen, "eager");
      EXPECT_EQ(simulator.tuner().status(), "eager");
      EXPECT_THAT(outcome.reason, HasSubstr("no candidate could be used"));
    }
  }
}

TEST(Tuner, ALateReadyDoesNotReviveADeadArm) {
  Simulator simulator(makeWorld(1, Mode::kMax));
  ASSERT_TRUE(simulator.tuner().report(ArmChanged{"native", ArmState::kFailed, "child died", 0, 0}).isOk());
  ASSERT_TRUE(simulator.tuner().report(ArmChanged{"native", ArmState::kReady, "", 0, 0}).isOk());
  simulator.run(1000);
  EXPECT_EQ(simulator.outcome().stepsByArm.count("native"), 0u);
  EXPECT_EQ(simulator.outcome().chosen, "inductor");
}

TEST(Tuner, FailedCaptureStaysEager) {
  TunerConfig config;
  config.mode = Mode::kMax;
  config.arms = {{"native"}, {"inductor"}};
  std::unique_ptr<Tuner> tuner = Tuner::create(config).value();
  tuner->advance();
  (void)tuner->report(CaptureFailed{"graph break at model.py:7", 0.3});
  const std::vector<Action> actions = tuner->advance();
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(actions[0].kind, ActionKind::kDecide);
  EXPECT_EQ(tuner->status(), "eager");
  EXPECT_THAT(tuner->snapshot(), HasSubstr("graph break at model.py:7"));
  EXPECT_EQ(tuner->quietSteps(), Tuner::kForever);
}

TEST(Tuner, RefusesImpossibleEvents) {
  std::unique_ptr<Tuner> tuner = Tuner::create({}).value();
  EXPECT_FALSE(tuner->report(StepFinished{"nobody", 1.0, "s", 0, false}).isOk());
  EXPECT_FALSE(tuner->report(StepFinished{"eager", 0.0, "s", 0, false}).isOk());
  EXPECT_FALSE(tuner->report(StepFinished{"eager", std::nan(""), "s", 0, false}).isOk());
  EXPECT_FALSE(tuner->report(ArmChanged{"eager", ArmState::kFailed, "", 0, 0}).isOk());
  EXPECT_FALSE(tuner->report(ArmAdded{{"eager"}}).isOk());
  EXPECT_FALSE(tuner->report(Adopted{"nobody"}).isOk());
}

TEST(Tuner, ArmThatNeverReallyRunsLoses) {
  TunerConfig config;
  config.mode = Mode::kMax;
  config.arms = {{"native"}};
  std::unique_ptr<Tuner> tuner = Tuner::create(config).value();
  for (int i = 0; i < 300; ++i) {
    for (int round = 0; round < 4; ++round) {
      for (const Action& action : tuner->advance()) {
        if (action.kind == ActionKind::kCapture) (void)tuner->report(CaptureFinished{0.1});
        if (action.kind != ActionKind::kWait) continue;
        ASSERT_TRUE(tuner->report(ArmChanged{"native", ArmState::kReady, "", 0, 0}).isOk());
      }
    }
    ASSERT_TRUE(tuner->report(StepFinished{"eager", 0.01, "s", 0, false}).isOk());  // its guards fail on every call
  }
  EXPECT_EQ(tuner->status(), "eager");
  EXPECT_THAT(tuner->snapshot(), HasSubstr("did not run when asked"));
}

TEST(Tuner, DisturbedStepsAreNeverCompared) {
  World world = makeWorld(1, Mode::kMax);
  // The worst case: outside load comes whenever the best arm is likely to run.
  world.disturbed = [](int64_t step) { return step % 7 < 3; };
  Simulator simulator(world);
  simulator.run(4000);
  EXPECT_EQ(simulator.outcome().chosen, "inductor") << simulator.outcome().reason;
}

TEST(Tuner, ArmsCompileGraphsCapturedWhileTuningAndAreMeasuredAnew) {
  for (const Mode mode : {Mode::kAuto, Mode::kMax}) {
    World world = makeWorld(5, mode);
    world.grows = [](int64_t step) { return step == 55; };
    // The best arm runs its second graph operator by operator until that graph is compiled.
    world.change = [](const std::string& arm, int64_t step) { return arm == "inductor" && step <= 55 ? 2.0 : 1.0; };
    Simulator simulator(world);
    simulator.run(6000);
    const Outcome outcome = simulator.outcome();
    EXPECT_EQ(outcome.chosen, "inductor") << toString(mode) << ": " << outcome.reason;
    EXPECT_GE(outcome.compiles.at("inductor"), mode == Mode::kMax ? 2 : 1);
  }
}

TEST(Tuner, AGraphAtEveryStepDoesNotKeepItTuningForEver) {
  World world = makeWorld(5, Mode::kMax);
  world.grows = [](int64_t) { return true; };
  Simulator simulator(world);
  simulator.run(4000);
  EXPECT_NE(simulator.tuner().status(), "tuning");
}

TEST(Tuner, FailureAfterTheDecisionIsForGood) {
  Simulator simulator(makeWorld(5, Mode::kMax));
  simulator.run(2000);
  ASSERT_EQ(simulator.outcome().chosen, "inductor");
  ASSERT_TRUE(simulator.tuner().report(ArmChanged{"inductor", ArmState::kFailed, "illegal instruction"}).isOk());
  simulator.run(20000);
  const Outcome outcome = simulator.outcome();
  ASSERT_EQ(outcome.rollbacks.size(), 1u);
  EXPECT_THAT(outcome.rollbacks[0], HasSubstr("illegal instruction"));
  EXPECT_EQ(outcome.chosen, "eager");
}

TEST(Tuner, FailureDuringATrialLeavesTheOthers) {
  World world = makeWorld(5, Mode::kMax);
  Simulator simulator(world);
  for (int i = 0; i < 300 && simulator.tuner().current() != "inductor"; ++i) simulator.run(1);
  ASSERT_EQ(simulator.tuner().current(), "inductor");
  ASSERT_TRUE(simulator.tuner().report(ArmChanged{"inductor", ArmState::kFailed, "wrong output shape"}).isOk());
  simulator.run(2000);
  EXPECT_EQ(simulator.outcome().chosen, "native");
}

TEST(Tuner, ARefinementAddedLaterIsTuned) {
  World world = makeWorld(5, Mode::kMax);
  Simulator simulator(world);
  simulator.run(2000);
  ASSERT_EQ(simulator.outcome().chosen, "inductor");
  simulator.world().arms.push_back({.name = "inductor+r2:native", .ratio = 0.5, .compileSeconds = 0.2});
  ASSERT_TRUE(simulator.tuner().report(ArmAdded{{"inductor+r2:native", 0.2, 0.1}}).isOk());
  simulator.run(2000);
  EXPECT_EQ(simulator.outcome().chosen, "inductor+r2:native");
}

TEST(Tuner, ManyShapesStayCheapAndBounded) {
  World world = makeWorld(8, Mode::kAuto);
  world.numShapes = 300;
  Simulator simulator(world);
  simulator.run(20000);
  EXPECT_LE(simulator.outcome().maxBudgetShare, 0.101);
}

}  // namespace
}  // namespace agspeed::runtime::tune

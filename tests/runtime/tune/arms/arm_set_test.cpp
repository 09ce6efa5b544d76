// SPDX-License-Identifier: Apache-2.0
#include "runtime/tune/arms/arm_set.h"

#include <gtest/gtest.h>

#include <initializer_list>

namespace agspeed::runtime::tune {
namespace {

/// Ready arms "arm1", "arm2", … with twenty pairs each, of these ratios to eager.
ArmSet readyArms(std::initializer_list<double> ratios) {
  ArmSet arms;
  for (const double ratio : ratios) {
    const std::string name = "arm" + std::to_string(arms.size());
    EXPECT_TRUE(arms.add({.name = name}, "").isOk());
    Arm& arm = arms[arms.size() - 1];
    arm.state = ArmState::kReady;
    for (int i = 0; i < 20; ++i) {
      arm.versusEager.addRun(Side::kReference, {{0, {1.0}}});
      arm.versusEager.addRun(Side::kArm, {{0, {ratio}}});
    }
  }
  return arms;
}

TEST(ArmSet, EagerIsTheFirstArmAndReady) {
  const ArmSet arms;
  EXPECT_EQ(arms.find("eager"), ArmSet::kEager);
  EXPECT_TRUE(arms.eager().isUsable());
  EXPECT_FALSE(arms.hasProven());
  EXPECT_FALSE(arms.first([](const Arm&) { return true; }).has_value());
}

TEST(ArmSet, NamesAreUniqueAndSomeArmsAreSkipped) {
  ArmSet arms;
  EXPECT_FALSE(arms.add({.name = ""}, "").isOk());
  EXPECT_FALSE(arms.add({.name = "eager"}, "").isOk());
  ASSERT_TRUE(arms.add({.name = "native"}, "takes too long").isOk());
  EXPECT_TRUE(arms[1].isDead());
  EXPECT_EQ(arms[1].reason, "takes too long");
}

TEST(ArmSet, AnArmIsReopenedIfTheArmThatBeatItIsOut) {
  ArmSet arms = readyArms({0.7, 0.8});
  arms.promote(1);
  arms.loseTo(2, 1, "");
  EXPECT_EQ(arms[2].reason, "no better than arm1");
  arms.disqualify(1, "slow steps");
  EXPECT_EQ(arms[2].verdict, Verdict::kOpen);
  EXPECT_FALSE(arms.hasProven());
  EXPECT_EQ(arms.numLosses(), 2);
}

TEST(ArmSet, OnlyFastArmsAreReopenedBelowALimit) {
  ArmSet arms = readyArms({0.99, 0.995, 0.9});
  arms.loseTo(2, 1, "");
  arms.loseTo(3, 1, "");
  arms.reviveBeatenBy(1, 0.99);
  EXPECT_EQ(arms[2].verdict, Verdict::kLost);
  EXPECT_EQ(arms[3].verdict, Verdict::kOpen);
}

TEST(ArmSet, AFailedArmLeavesAfterADecisionOnlyByRollback) {
  ArmSet arms = readyArms({0.7, 0.8});
  arms.choose(1, "fast");
  arms.loseTo(2, 1, "");
  arms.dismiss(1, /*isDecided=*/true);
  EXPECT_EQ(arms.incumbent(), 1);
  EXPECT_EQ(arms[2].verdict, Verdict::kLost);
  arms.dismiss(1, /*isDecided=*/false);
  EXPECT_FALSE(arms.hasProven());
  EXPECT_EQ(arms[2].verdict, Verdict::kOpen);
}

TEST(ArmSet, PairsWithEagerSettleTheChoiceIfTheyCan) {
  ArmSet arms = readyArms({0.9, 0.6, 0.8});
  for (size_t arm = 1; arm < arms.size(); ++arm) arms[arm].accept("", true);
  EXPECT_FALSE(arms.nextChallenger({}).has_value());
  EXPECT_EQ(arms.incumbent(), 2);
  EXPECT_EQ(arms[1].beatenBy, "arm2");
  EXPECT_EQ(arms.findRival(3, {}), 2);
  EXPECT_DOUBLE_EQ(arms.bestRatio(), 0.6);
}

TEST(ArmSet, ADecisionGivesUpCompiles) {
  ArmSet arms = readyArms({0.7, 0.8});
  arms[2].state = ArmState::kCompiling;
  EXPECT_TRUE(arms.isAnyCompiling());
  arms.choose(1, "fast");
  EXPECT_FALSE(arms.isAnyCompiling());
  EXPECT_TRUE(arms[2].isWaiting());
}

TEST(ArmSet, OtherGraphsLeaveOnlyDeadArmsAsTheyAre) {
  ArmSet arms = readyArms({0.7, 0.8, 0.9});
  arms.promote(1);
  arms[2].state = ArmState::kCompiling;
  arms[3].state = ArmState::kFailed;
  arms.forgetAll();
  EXPECT_EQ(arms[1].state, ArmState::kWaiting);
  EXPECT_EQ(arms[1].versusEager.numPairs(), 0);
  EXPECT_EQ(arms[2].state, ArmState::kCompiling);
  EXPECT_EQ(arms[3].state, ArmState::kFailed);
  EXPECT_FALSE(arms.hasProven());
}

TEST(ArmSet, FindingsContinueInAnotherProcessAlsoForArmsAddedLater) {
  ArmSet earlier = readyArms({0.7, 0.8});
  earlier.loseTo(2, 1, "");
  ArmSet arms;
  ASSERT_TRUE(arms.add({.name = "arm1"}, "").isOk());
  ASSERT_TRUE(arms.resume(earlier.findings()).isOk());
  EXPECT_EQ(arms.numResumedPairs(), 20);
  ASSERT_TRUE(arms.add({.name = "arm2"}, "").isOk());
  EXPECT_EQ(arms.numResumedPairs(), 40);
  EXPECT_EQ(arms[2].verdict, Verdict::kLost);
  EXPECT_FALSE(arms.resume("{}").isOk());
}

TEST(ArmSet, AnUnseenArmIsExpectedToBeSlow) {
  ArmSet arms = readyArms({0.7});
  arms[0].seconds.add(0.1);
  EXPECT_DOUBLE_EQ(arms.excessSeconds(1), 1.0);
  arms[1].numSteps = 1;
  arms[1].lastSeconds = 0.3;
  EXPECT_DOUBLE_EQ(arms.excessSeconds(1), 0.2);
  arms[1].seconds.add(0.05);
  EXPECT_DOUBLE_EQ(arms.excessSeconds(1), 0);
}

TEST(ArmSet, TheReasonForEagerNamesWhatHappened) {
  EXPECT_EQ(ArmSet().describeEager(false, {}), "there is no candidate but eager");
  ArmSet arms;
  for (const char* name : {"native", "aot"}) ASSERT_TRUE(arms.add({.name = name}, "no compiler").isOk());
  EXPECT_EQ(arms.describeEager(false, {}), "no candidate could be used: no compiler");
  arms[2].reason = "another reason";
  EXPECT_EQ(arms.describeEager(false, {}), "no candidate could be used; see the reason of each");
  EXPECT_EQ(readyArms({1.0}).describeEager(false, {}), "no candidate is at least 1.0 % faster than eager");
}

}  // namespace
}  // namespace agspeed::runtime::tune

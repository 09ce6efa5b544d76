// SPDX-License-Identifier: Apache-2.0
#include "runtime/tune/measure/comparison.h"

#include <gtest/gtest.h>

#include <string>

namespace agspeed::runtime::tune {
namespace {

/// Runs one block and returns the letters of the steps. Dropped steps have small letters.
std::string runBlock(AbbaSchedule& schedule, Comparison& comparison, double armRatio, double driftPerStep) {
  std::string letters;
  Side last = Side::kReference;
  double clock = 1;
  while (!schedule.isBlockDone()) {
    const Side side = schedule.next();
    const bool isSwitch = side != last;
    letters += side == Side::kReference ? (isSwitch ? 'a' : 'A') : (isSwitch ? 'b' : 'B');
    const double first = isSwitch ? 5.0 : 1.0;  // the cost of a switch must not affect the result
    schedule.addStep(side, 0, clock * first * (side == Side::kArm ? armRatio : 1), true, comparison);
    clock *= 1 + driftPerStep;
    last = side;
  }
  return letters;
}

TEST(AbbaSchedule, DropsTheFirstStepAfterEachSwitch) {
  Comparison comparison;
  AbbaSchedule schedule(1, Side::kReference);
  EXPECT_EQ(runBlock(schedule, comparison, 0.5, 0), "AbBBaA");
  ASSERT_EQ(comparison.numPairs(), 2);
  EXPECT_DOUBLE_EQ(comparison.ratio(0.99).estimate, 0.5);
}

TEST(AbbaSchedule, RepeatsStepsWithinARun) {
  Comparison comparison;
  AbbaSchedule schedule(3, Side::kReference);
  EXPECT_EQ(runBlock(schedule, comparison, 0.5, 0), "AAAbBBBBBBaAAA");
  EXPECT_EQ(comparison.numPairs(), 2);
}

TEST(AbbaSchedule, DropsAStepWhenTheOtherArmWasRunning) {
  Comparison comparison;
  AbbaSchedule schedule(1, Side::kArm);
  schedule.addStep(Side::kReference, 0, 100.0, true, comparison);
  schedule.addStep(Side::kReference, 0, 1.0, true, comparison);
  EXPECT_EQ(schedule.next(), Side::kArm);
}

TEST(AbbaSchedule, CancelsLinearDrift) {
  Comparison comparison;
  for (int block = 0; block < 10; ++block) {
    AbbaSchedule schedule(1, Side::kReference);
    runBlock(schedule, comparison, 0.9, 0.01);
  }
  EXPECT_NEAR(comparison.ratio(0.99).estimate, 0.9, 0.003);
}

TEST(AbbaSchedule, IgnoresDisturbedStepsAndStepsOfTheWrongArm) {
  Comparison comparison;
  AbbaSchedule schedule(1, Side::kReference);
  schedule.addStep(Side::kReference, 0, 50.0, false, comparison);
  EXPECT_EQ(schedule.next(), Side::kReference);
  schedule.addStep(Side::kReference, 0, 1.0, true, comparison);
  schedule.addStep(Side::kReference, 0, 1.0, true, comparison);
  EXPECT_EQ(schedule.numMissed(), 1);
  EXPECT_EQ(comparison.numPairs(), 0);
}

TEST(Comparison, PairsOfAnEarlierProcessCountUntilOwnOnesContradictThem) {
  for (const double own : {0.795, 0.9}) {
    Comparison comparison;
    std::vector<RunPair> earlier;
    for (int i = 0; i < 20; ++i) earlier.push_back({1, 0.79 + 0.001 * i, 1, 0.8});
    comparison.addEarlier(earlier);
    EXPECT_EQ(comparison.numOwn(), 0);
    for (int i = 0; i < 8; ++i) {
      comparison.addRun(Side::kReference, {{0, {2.0}}});
      comparison.addRun(Side::kArm, {{0, {2.0 * (own + 0.001 * i)}}});
    }
    const bool isContradicted = own > 0.85;
    EXPECT_EQ(comparison.dropContradicted(), isContradicted) << own;
    EXPECT_EQ(comparison.numEarlier(), isContradicted ? 0 : 20) << own;
    EXPECT_EQ(comparison.numPairs(), isContradicted ? 8 : 28) << own;
  }
}

TEST(Comparison, PairsOnlyRunsOfOneShape) {
  Comparison comparison;
  comparison.addRun(Side::kReference, {{0, {1.0}}});
  comparison.addRun(Side::kArm, {{1, {9.0}}});
  EXPECT_EQ(comparison.numPairs(), 0);
  comparison.addRun(Side::kArm, {{0, {0.5}}});
  comparison.addRun(Side::kReference, {{1, {18.0}}});
  ASSERT_EQ(comparison.numPairs(), 2);
  EXPECT_DOUBLE_EQ(comparison.ratio(0.99).estimate, 0.5);
}

TEST(Comparison, ForgetsRunsTooOldToPair) {
  Comparison comparison;
  comparison.addRun(Side::kReference, {{7, {1.0}}});
  for (int i = 0; i < 100; ++i) comparison.addRun(i % 2 == 0 ? Side::kReference : Side::kArm, {{0, {1.0}}});
  const int before = comparison.numPairs();
  comparison.addRun(Side::kArm, {{7, {3.0}}});
  EXPECT_EQ(comparison.numPairs(), before);
}

TEST(Comparison, SlidesItsWindow) {
  Comparison comparison(4);
  for (int i = 0; i < 10; ++i) {
    comparison.addRun(Side::kReference, {{0, {1.0}}});
    comparison.addRun(Side::kArm, {{0, {i < 6 ? 2.0 : 3.0}}});
  }
  EXPECT_EQ(comparison.numPairs(), 4);
  EXPECT_DOUBLE_EQ(comparison.ratio(0.99).estimate, 3.0);
}

TEST(Comparison, UsesTheLowQuartileOfLongRuns) {
  Comparison comparison;
  comparison.addRun(Side::kReference, {{0, {1, 1, 1, 9, 9}}});
  comparison.addRun(Side::kArm, {{0, {2, 2, 2, 2, 9}}});
  EXPECT_DOUBLE_EQ(comparison.ratio(0.99).estimate, 2.0);
  EXPECT_NEAR(comparison.sumRatio(0.99).estimate, 17.0 / 21.0, 1e-12);
}

TEST(ChooseRunSteps, LastsMillisecondsForMicrosecondSteps) {
  EXPECT_EQ(chooseRunSteps(0.18, 0.002, 64), 1);
  EXPECT_EQ(chooseRunSteps(0.0004, 0.002, 64), 5);
  EXPECT_EQ(chooseRunSteps(0.000001, 0.002, 64), 64);
}

}  // namespace
}  // namespace agspeed::runtime::tune

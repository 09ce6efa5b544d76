// SPDX-License-Identifier: Apache-2.0
#include "runtime/tune/arms/judgement.h"

#include <gtest/gtest.h>

namespace agspeed::runtime::tune {
namespace {

using Kind = Judgement::Kind;

/// Adds pairs of runs in which eager takes 1 s and the arm `ratio`, give or take `spread` in turns.
void addPairs(Comparison& comparison, int32_t count, double ratio, double spread = 0) {
  for (int32_t i = 0; i < count; ++i) {
    comparison.addRun(Side::kReference, {{0, {1.0}}});
    comparison.addRun(Side::kArm, {{0, {ratio + (i % 2 == 0 ? spread : -spread)}}});
  }
}

Arm readyArm(int32_t numPairs, double ratio, double spread = 0) {
  Arm arm;
  arm.spec.name = "native";
  arm.state = ArmState::kReady;
  arm.numBlocks = numPairs / 2;
  addPairs(arm.versusEager, numPairs, ratio, spread);
  return arm;
}

TEST(Judgement, AFewPairsOfALargeGainAreEnough) {
  EXPECT_EQ(judgeVersusEager(readyArm(10, 0.8, 0.02), {}, {}).kind, Kind::kContinue);
  const Judgement judgement = judgeVersusEager(readyArm(12, 0.8, 0.02), {}, {});
  EXPECT_EQ(judgement.kind, Kind::kAccept);
  EXPECT_TRUE(judgement.reason.starts_with("faster than eager: 1.250 times")) << judgement.reason;
  EXPECT_TRUE(judgement.isConfirmed);
}

TEST(Judgement, InMaxModeAnEarlyWinHasToBeConfirmed) {
  TunerConfig config;
  config.mode = Mode::kMax;
  EXPECT_FALSE(judgeVersusEager(readyArm(12, 0.8, 0.02), {}, config).isConfirmed);
  EXPECT_TRUE(judgeVersusEager(readyArm(100, 0.8, 0.02), {}, config).isConfirmed);
}

TEST(Judgement, AnArmAsFastAsEagerIsNotFaster) {
  const Judgement judgement = judgeVersusEager(readyArm(20, 1.0), {}, {});
  EXPECT_EQ(judgement.kind, Kind::kNotFaster);
  EXPECT_TRUE(judgement.reason.starts_with("not clearly faster than eager")) << judgement.reason;
}

TEST(Judgement, AnArmFarBehindTheBestIsDropped) {
  EXPECT_EQ(judgeVersusEager(readyArm(4, 0.9), {.bestRatio = 0.6}, {}).kind, Kind::kLose);
  EXPECT_EQ(judgeVersusEager(readyArm(4, 0.9), {.bestRatio = 0.8}, {}).kind, Kind::kContinue);
}

TEST(Judgement, AnArmLosesToARival) {
  EXPECT_EQ(judgeVersusEager(readyArm(12, 0.8), {.rival = "inductor"}, {}).kind, Kind::kLoseTo);
  EXPECT_TRUE(losesTo(readyArm(8, 0.8), readyArm(8, 0.7), {}));
  EXPECT_FALSE(losesTo(readyArm(8, 0.7), readyArm(8, 0.8), {}));
  EXPECT_FALSE(losesTo(readyArm(6, 0.8), readyArm(8, 0.7), {})) << "too few pairs";
  Arm failed = readyArm(8, 0.7);
  failed.state = ArmState::kFailed;
  EXPECT_FALSE(losesTo(readyArm(8, 0.8), failed, {}));
}

TEST(Judgement, AnArmThatNeedsTooMuchMemoryIsOut) {
  Arm arm = readyArm(12, 0.5);
  arm.shapes[0].numPeaks = 2;
  arm.shapes[0].peakBytes = int64_t{200} << 20;
  const Judgement judgement = judgeVersusEager(arm, {.eagerPeaks = {{0, int64_t{100} << 20}}}, {});
  EXPECT_EQ(judgement.kind, Kind::kTooLarge);
  EXPECT_EQ(judgement.reason, "needs 200.0 MiB at its peak, eager 100.0 MiB (allowed: 15 % + 16 MiB more)");
  EXPECT_EQ(judgeVersusEager(arm, {.eagerPeaks = {{0, int64_t{190} << 20}}}, {}).kind, Kind::kAccept);
}

TEST(Judgement, SlowStepsObjectOnceThePairsAreSpent) {
  TunerConfig config;
  config.maxPairs = 60;
  Arm arm = readyArm(44, 0.8);
  addPairs(arm.versusEager, 6, 8.0);
  EXPECT_EQ(judgeVersusEager(arm, {}, config).kind, Kind::kContinue);
  addPairs(arm.versusEager, 10, 0.8);
  EXPECT_EQ(judgeVersusEager(arm, {}, config).kind, Kind::kDisqualify);
}

TEST(Judgement, EarlierPairsAloneJudgeNothing) {
  Arm arm;
  const RunPair pair = {1.0, 0.5, 1.0, 0.5};
  arm.versusEager.addEarlier(std::vector<RunPair>(20, pair));
  EXPECT_FALSE(isJudgeable(arm, {}));
  addPairs(arm.versusEager, 4, 0.5);
  EXPECT_TRUE(isJudgeable(arm, {}));
}

TEST(Judgement, ADuelEndsOnceTheLoserCanHardlyBeBetter) {
  Comparison duel;
  addPairs(duel, 6, 0.9);
  EXPECT_FALSE(judgeDuel(duel, {}).has_value());
  addPairs(duel, 6, 0.9);
  const std::optional<DuelResult> result = judgeDuel(duel, {});
  ASSERT_TRUE(result.has_value());
  EXPECT_TRUE(result->isWon);
  EXPECT_TRUE(result->evidence.starts_with(" in direct pairs: ")) << result->evidence;
}

TEST(Judgement, FirstStepsAndSlowStepsAreComparedWithEager) {
  Arm eager, arm = readyArm(12, 0.8);
  for (int i = 0; i < 20; ++i) eager.seconds.add(1.0);
  for (const double seconds : {3.1, 3.2, 3.3}) arm.seconds.add(seconds);
  EXPECT_TRUE(isHopeless(arm, eager));
  arm.seconds.add(2.9);
  EXPECT_FALSE(isHopeless(arm, eager));
  arm.seconds.clear();
  for (int i = 0; i < 20; ++i) arm.seconds.add(i == 0 ? 4.0 : 0.8);
  EXPECT_TRUE(hasSlowSteps(arm, eager));
  arm.seconds.clear();
  for (int i = 0; i < 20; ++i) arm.seconds.add(i == 0 ? 1.5 : 0.8);
  EXPECT_FALSE(hasSlowSteps(arm, eager));
}

}  // namespace
}  // namespace agspeed::runtime::tune

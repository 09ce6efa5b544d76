// SPDX-License-Identifier: Apache-2.0
#include "runtime/tune/ledger.h"

#include <gtest/gtest.h>

namespace agspeed::runtime::tune {
namespace {

TEST(Ledger, EarnsAShareOfTheTimeTrained) {
  TunerConfig config;
  config.searchFraction = 0.10;
  Ledger ledger(config);
  EXPECT_FALSE(ledger.canAfford(0.001));
  ledger.addTrained(100, 1000);
  EXPECT_TRUE(ledger.canAfford(9.6));
  EXPECT_FALSE(ledger.canAfford(10));
  ledger.addForeground(5);
  EXPECT_FALSE(ledger.canAfford(5));
  EXPECT_DOUBLE_EQ(ledger.wallSeconds(), 105);
}

TEST(Ledger, CountsEveryKindOfSlowdownOnce) {
  Ledger ledger(TunerConfig{});
  ledger.addForeground(1);
  ledger.addInflation(0.5);
  ledger.addTrial("a", 0.25);
  ledger.addTrial("b", -7);  // an arm faster than eager costs nothing, but does not pay for others
  ledger.addBackground(100);
  ledger.addSaved(50);
  EXPECT_DOUBLE_EQ(ledger.slowdownSeconds(), 1.75);
}

TEST(Ledger, NoiseBelowZeroIsNoIncome) {
  Ledger ledger(TunerConfig{});
  ledger.addInflation(-3);
  EXPECT_DOUBLE_EQ(ledger.slowdownSeconds(), 0);
}

TEST(Ledger, EarnsLessOnceSomethingIsDecided) {
  TunerConfig config;
  config.searchFraction = 0.25;
  config.budgetFraction = 0.10;
  Ledger ledger(config);
  ledger.addTrained(100, 1000);
  EXPECT_TRUE(ledger.canAfford(24));
  ledger.endSearch();
  EXPECT_FALSE(ledger.canAfford(10));
  EXPECT_TRUE(ledger.canAfford(9.6));
}

TEST(Ledger, ModelsOfOneTrainingLoopShareTheBudget) {
  TunerConfig config;
  config.searchFraction = 0.25;
  Ledger ledger(config);
  ledger.addTrained(100, 1000);
  ledger.shareAmong(2);
  EXPECT_TRUE(ledger.canAfford(12));
  EXPECT_FALSE(ledger.canAfford(13));
  ledger.shareAmong(1);
  EXPECT_TRUE(ledger.canAfford(24));
}

TEST(Ledger, SaysHowLongSomethingHasToBeEarned) {
  TunerConfig config;
  config.searchFraction = 0.25;
  Ledger ledger(config);
  EXPECT_NEAR(ledger.earningSeconds(2.425), 10, 1e-9);
  ledger.addTrained(ledger.earningSeconds(2.425), 1);
  EXPECT_TRUE(ledger.canAfford(2.42));
  EXPECT_EQ(ledger.earningSeconds(2), 0);
}

TEST(Ledger, StartUpCountsButLeavesTheGrantWhole) {
  TunerConfig config;
  Ledger automatic(config);
  automatic.addStartUp(3);
  EXPECT_DOUBLE_EQ(automatic.slowdownSeconds(), 3);
  EXPECT_FALSE(automatic.canAfford(0.01));
  config.mode = Mode::kFastStart;
  Ledger fastStart(config);
  const double granted = fastStart.leftSeconds();
  fastStart.addStartUp(3);
  EXPECT_DOUBLE_EQ(fastStart.slowdownSeconds(), 3);
  EXPECT_DOUBLE_EQ(fastStart.leftSeconds(), granted);
}

TEST(Ledger, CapHoldsInEveryMode) {
  for (const Mode mode : {Mode::kAuto, Mode::kMax, Mode::kFastStart, Mode::kDeterministic}) {
    TunerConfig config;
    config.mode = mode;
    config.budgetSeconds = 2;
    Ledger ledger(config);
    ledger.addTrained(1e6, 1);
    EXPECT_TRUE(ledger.canAfford(2)) << toString(mode);
    EXPECT_FALSE(ledger.canAfford(2.1)) << toString(mode);
  }
}

}  // namespace
}  // namespace agspeed::runtime::tune

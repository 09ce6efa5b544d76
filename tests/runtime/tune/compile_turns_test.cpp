// SPDX-License-Identifier: Apache-2.0
#include "runtime/tune/compile_turns.h"

#include <gtest/gtest.h>

namespace agspeed::runtime::tune {
namespace {

constexpr size_t kNative = 1;    ///< compiles in the background for 20 s
constexpr size_t kInductor = 2;  ///< the same
constexpr size_t kQuick = 3;     ///< needs no background work

/// The turns of a tuner whose arms wait for their compiles.
struct Machine {
  explicit Machine(Mode mode, bool hasSpareCores = false) : config(make(mode, hasSpareCores)), ledger(config) {
    EXPECT_TRUE(arms.add({"native", 20, 1}, "").isOk());
    EXPECT_TRUE(arms.add({"inductor", 20, 1}, "").isOk());
    EXPECT_TRUE(arms.add({"quick", 0, 1}, "").isOk());
  }
  static TunerConfig make(Mode mode, bool hasSpareCores) {
    TunerConfig config;
    config.mode = mode;
    config.hasSpareCores = hasSpareCores;
    return config;
  }
  void compile(size_t arm, Level level) {
    arms[arm].state = ArmState::kCompiling;
    turns.begin(arm, level);
  }
  std::string planned(size_t arm) const {
    std::string text;
    for (const Action& action : turns.planTurn(arm)) {
      text += std::string(toString(action.kind)) + " " + std::string(toString(action.level)) + "; ";
    }
    return text;
  }

  TunerConfig config;
  Ledger ledger;
  ArmSet arms;
  CompileTurns turns{config, arms, ledger};
};

TEST(CompileTurns, WithoutSpareCoresStepsAndACompileAlternate) {
  Machine machine(Mode::kMax);
  machine.compile(kNative, Level::kSuspended);
  EXPECT_FALSE(machine.turns.isDisturbing());
  EXPECT_EQ(machine.planned(kNative), "priority raised; wait raised; ");
  machine.turns.change(*machine.turns.setLevel(kNative, Level::kRaised));
  machine.turns.beginTurn();
  EXPECT_TRUE(machine.turns.isDisturbing());
  EXPECT_EQ(machine.planned(kNative), "priority suspended; ");
  machine.ledger.addTrained(0.6, 1);  // a tenth of a pause of 5 s
  EXPECT_EQ(machine.planned(kNative), "wait raised; ");
}

TEST(CompileTurns, WithSpareCoresACompileRunsBesideSteps) {
  Machine machine(Mode::kMax, /*hasSpareCores=*/true);
  machine.compile(kNative, Level::kRaised);
  machine.turns.beginTurn();
  EXPECT_EQ(machine.planned(kNative), "");
  machine.arms.setStored(kNative);
  machine.turns.beginTurn();
  EXPECT_EQ(machine.planned(kNative), "wait raised; ") << "training waits if the database knows the outcome";
}

TEST(CompileTurns, AfterALongPauseAStepComesFirst) {
  Machine machine(Mode::kMax);
  machine.compile(kNative, Level::kRaised);
  machine.ledger.addForeground(3);
  EXPECT_FALSE(machine.turns.isRested());
  EXPECT_EQ(machine.planned(kNative), "priority suspended; ");
  machine.turns.stepFinished();
  EXPECT_TRUE(machine.turns.isRested());
}

TEST(CompileTurns, AProvenArmRunsFirstIfTheCompileIsLong) {
  Machine machine(Mode::kMax);
  machine.arms[kNative].state = ArmState::kReady;
  machine.arms.promote(kNative);
  machine.compile(kInductor, Level::kRaised);
  EXPECT_EQ(machine.planned(kInductor), "priority suspended; ");
}

TEST(CompileTurns, QuickArmsWaitForTheFirstCompileAndItsSteps) {
  Machine machine(Mode::kMax);
  EXPECT_EQ(machine.turns.nextCompile(), kNative);
  EXPECT_FALSE(machine.turns.nextLoad(/*isCompiling=*/true).has_value());
  machine.arms[kNative].state = ArmState::kCompiled;
  EXPECT_FALSE(machine.turns.nextCompile().has_value()) << "a load comes first";
  EXPECT_EQ(machine.turns.nextLoad(false), kNative);
  machine.arms[kNative].state = ArmState::kReady;
  EXPECT_TRUE(machine.turns.hasBlocksLeft());
  EXPECT_FALSE(machine.turns.nextLoad(false).has_value());
  machine.arms[kNative].numBlocks = 6;
  EXPECT_FALSE(machine.turns.hasBlocksLeft());
  EXPECT_EQ(machine.turns.nextLoad(false), kQuick);
  machine.arms[kNative].seconds.add(1.0);
  machine.turns.armProven(machine.arms[kNative]);
  EXPECT_TRUE(machine.turns.hasFirstSteps());
  machine.ledger.addTrained(5, 5);
  EXPECT_FALSE(machine.turns.hasFirstSteps());
}

TEST(CompileTurns, TheBudgetRaisesAndSuspendsACompile) {
  Machine machine(Mode::kAuto);
  machine.compile(kNative, Level::kIdle);
  EXPECT_EQ(machine.turns.planBudgeted(kNative)->reason, "the budget is spent");
  machine.ledger.addTrained(100, 100);
  const std::optional<Action> raised = machine.turns.planBudgeted(kNative);
  ASSERT_TRUE(raised.has_value());
  EXPECT_EQ(raised->level, Level::kRaised);
  EXPECT_EQ(raised->seconds, 30);
  machine.turns.change(*raised);
  EXPECT_FALSE(machine.turns.planBudgeted(kNative).has_value());
  machine.ledger.addForeground(30);
  const std::optional<Action> suspended = machine.turns.planBudgeted(kNative);
  ASSERT_TRUE(suspended.has_value());
  EXPECT_EQ(suspended->level, Level::kSuspended);
  machine.turns.change(*suspended);
  EXPECT_FALSE(machine.turns.planBudgeted(kNative).has_value());
  machine.ledger.addTrained(100, 100);
  EXPECT_EQ(machine.turns.planBudgeted(kNative)->reason, "the budget has recovered");
}

TEST(CompileTurns, ANewCompileIsExpectedToCostNothing) {
  Machine machine(Mode::kAuto);
  machine.turns.setInflation(0.3);
  EXPECT_EQ(machine.turns.inflation(), 0.3);
  machine.turns.compileStarted();
  EXPECT_EQ(machine.turns.inflation(), 0);
}

}  // namespace
}  // namespace agspeed::runtime::tune

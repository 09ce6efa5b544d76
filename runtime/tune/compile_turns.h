// SPDX-License-Identifier: Apache-2.0
// CompileTurns: decides which arm compiles next, at which priority, and for how long.
//
// In auto mode a compile has idle priority. It gets normal priority while the earned budget pays for that, and is
// suspended when the budget is spent. In max mode the user waits for compiles, so a compile and training share the
// machine. Without spare cores, steps and a compile side by side are slower than one after the other. So they take
// turns:
//
//   compile   #####.......#####...#####..      '#' runs, '.' is suspended
//   training       |||||||     |||     ||      '|' one step; gaps last maxPauseSeconds at most
//
// Training has the first turn if an arm is proven (faster than eager) by then, and if the compile is expected to take
// longer than maxPauseSeconds. Arms without background work wait until the first compile has ended and its arm is
// measured. Until then training has few steps that could gain by them, and a load would delay the compile. They also
// wait until the first proven arm that was compiled in the background has run some steps.
//
// Reads the configuration, arms and ledger of its tuner, and does not change them. Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/tune/action.h"
#include "runtime/tune/arms/arm_set.h"
#include "runtime/tune/config.h"
#include "runtime/tune/ledger.h"

namespace agspeed::runtime::tune {

class CompileTurns {
 public:
  /// All three have to outlive this object.
  CompileTurns(const TunerConfig& config, const ArmSet& arms, const Ledger& ledger)
      : config_(config), arms_(arms), ledger_(ledger) {}

  // Events ------------------------------------------------------------------------------------------------------------
  /// Records that the tuner asks for the compile of `arm`.
  void begin(size_t arm, Level level);
  /// Records that the driver has begun a compile. Its effect on steps is not known yet.
  void compileStarted() { inflation_ = 0; }
  /// Records that the tuner asks for this kPriority action.
  void change(const Action& action);
  /// Begins training's turn, now or after the pause that starts now. If the database names the arm to use, the turn is
  /// one step.
  void beginTurn();
  void stepFinished() { foregroundAtStep_ = ledger_.foregroundSeconds(); }
  /// Records how many seconds longer a step took because a compile ran.
  void setInflation(double seconds) { inflation_ = seconds; }
  /// Records that an arm is proven. If it is the first one that was compiled in the background, it runs some steps
  /// before the next load, so that training gains from it at once.
  void armProven(const Arm& arm);

  // Queries -----------------------------------------------------------------------------------------------------------
  /// Whether a compile runs at the same time as the steps, and slows them down.
  bool isDisturbing() const { return level_ != Level::kSuspended && arms_.isAnyCompiling(); }
  /// How many seconds longer the latest step during a compile took.
  double inflation() const { return inflation_; }
  /// Whether steps and a compile run one after the other.
  bool isAlternating() const { return !config_.hasSpareCores || arms_.stored(); }
  /// Whether training has been paused for at most half of maxPauseSeconds since the last step, so that another load may
  /// start.
  bool isRested() const;
  /// Whether the first proven arm still has to run steps before the next load (see armProven()).
  bool hasFirstSteps() const { return ledger_.numSteps() < firstStepsEndAt_; }
  /// Whether the least measured arm has had fewer than kBlocksBeside blocks. A compile is suspended for these blocks.
  /// Later blocks wait for the end of the compile.
  bool hasBlocksLeft() const;
  /// A suspended compile resumes when more than this part of the budget is free.
  double resumeSeconds() const;

  // Plans -------------------------------------------------------------------------------------------------------------
  /// Max mode: returns the arm whose background compile begins next. Without spare cores, returns nothing while blocks
  /// or loads are left, because the compile would delay their results.
  std::optional<size_t> nextCompile() const;
  /// Max mode: returns the arm to load next: a compiled arm, or else one without background work.
  std::optional<size_t> nextLoad(bool isCompiling) const;
  /// Returns the action that gives the running compile of `arm` this level, or nothing if it has the level.
  std::optional<Action> setLevel(size_t arm, Level level) const;
  /// Auto mode: returns the next change of the compile's level, if any. The level is idle by default, and suspended
  /// while the allowance is spent. It is raised for as long as the allowance pays for it and for the later load.
  std::optional<Action> planBudgeted(size_t arm) const;
  /// Max mode: returns the actions with which the compile of `arm` and the steps of the current arm continue, side by
  /// side or in turns.
  std::vector<Action> planTurn(size_t arm) const;
  /// Returns the action by which training waits for the compile of `arm`.
  Action wait(size_t arm, double seconds) const;

 private:
  bool isFirstCompileOver() const;

  const TunerConfig& config_;
  const ArmSet& arms_;
  const Ledger& ledger_;
  Level level_ = Level::kIdle;
  double raisedUntil_ = 0;       ///< in wall seconds
  double turnEndsAt_ = 0;        ///< in trained seconds: until then steps run and a compile is suspended
  int64_t firstStepsEndAt_ = 0;  ///< number of a step; 0 if no arm that was compiled in the background is proven yet
  double foregroundAtStep_ = 0;  ///< Ledger::foregroundSeconds() when the latest step ended
  double inflation_ = 0;
};

}  // namespace agspeed::runtime::tune

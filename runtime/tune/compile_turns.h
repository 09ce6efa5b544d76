// SPDX-License-Identifier: Apache-2.0
// CompileTurns: who may compile now, with which share of the machine, and for how long.
//
// In auto mode a compile has idle priority. It is raised while the earned budget pays for it, and suspended when the
// budget is spent. In max mode training and a compile share the machine while the user waits for the compile. Without
// cores to spare, steps and a compile side by side are slower than one after the other, so they take turns:
//
//   compile   #####.......#####...#####..      '#' runs, '.' is suspended
//   training       |||||||     |||     ||      '|' one step; gaps last maxPauseSeconds at most
//
// Training has the first turn if an arm is proven by then and the compile will take more than one turn. Arms without
// background work wait for the first compile and its blocks. Until then training has few steps that could gain by them,
// and a load would delay the compile. They also wait for some steps of the first compiled arm that is proven.
//
// Refers to the configuration, arms and ledger of its tuner, and changes none of them. Not thread-safe.
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
  /// The tuner asks for the compile of `arm`.
  void begin(size_t arm, Level level);
  /// The driver has begun a compile: nothing is known about how much it slows steps down.
  void compileStarted() { inflation_ = 0; }
  /// The tuner asks for this priority action.
  void change(const Action& action);
  /// Training's turn begins now, or after the pause that starts now. It is one step if the database knows the outcome.
  void beginTurn();
  void stepFinished() { foregroundAtStep_ = ledger_.foregroundSeconds(); }
  /// A step beside a compile took this much longer than it does alone.
  void setInflation(double seconds) { inflation_ = seconds; }
  /// If this is the first arm compiled in the background that is proven, training gains by it before anything else is
  /// loaded.
  void armProven(const Arm& arm);

  // Queries -----------------------------------------------------------------------------------------------------------
  /// Whether a compile runs beside the steps, and disturbs them.
  bool isDisturbing() const { return level_ != Level::kSuspended && arms_.isAnyCompiling(); }
  /// By how many seconds a compile has slowed down the latest step beside it.
  double inflation() const { return inflation_; }
  /// Whether steps and a compile run one after the other.
  bool isAlternating() const { return !config_.hasSpareCores || arms_.stored(); }
  /// Whether training has paused so little that no step is due first.
  bool isRested() const;
  /// Whether steps of the first proven arm come before further loads.
  bool hasFirstSteps() const { return ledger_.numSteps() < firstStepsEndAt_; }
  /// Whether an arm has blocks left for which a compile is suspended. Later blocks wait for the end of the compile.
  bool hasBlocksLeft() const;
  /// The budget that has to be free before a suspended compile resumes.
  double resumeSeconds() const;

  // Plans -------------------------------------------------------------------------------------------------------------
  /// Max mode: the arm whose compile in the background begins next, unless this delays results that are nearly known.
  std::optional<size_t> nextCompile() const;
  /// Max mode: a compiled arm, or else one that needs no background work.
  std::optional<size_t> nextLoad(bool isCompiling) const;
  /// Asks for a level of the running compile of `arm`; nothing if it has that level.
  std::optional<Action> setLevel(size_t arm, Level level) const;
  /// Auto mode: idle by default. Suspended when the allowance is spent. Raised for as long as the allowance pays beyond
  /// the load.
  std::optional<Action> planBudgeted(size_t arm) const;
  /// Lets the compile of `arm` and the steps of the current arm continue, side by side or in turns.
  std::vector<Action> planTurn(size_t arm) const;
  /// Training waits for the compile of `arm`.
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
  double foregroundAtStep_ = 0;  ///< the ledger's value when the latest step ended
  double inflation_ = 0;
};

}  // namespace agspeed::runtime::tune

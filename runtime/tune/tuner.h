// SPDX-License-Identifier: Apache-2.0
// Tuner: decides which arm runs the next training step. It is a pure state machine: events go in, and advance() returns
// actions. It has no clock, thread or callback, so a simulated trace can test all of it.
//
//   observing --capture--> capturing --captured--> tuning --decide--> settled --(rollback, new arm)--> tuning | settled
//
// The driver (python/agspeed/tuning) reports events, calls advance() at every step boundary and carries out the
// returned actions, in order. While tuning, the best arm proven so far runs. An arm is proven if it is accepted as
// faster than eager; until then eager runs.
//
//   tuner.report(StepFinished{.arm = "eager", .seconds = 0.0021, .shape = "8x128"});
//   for (const Action& action : tuner.advance()) carryOut(action);   // e.g. {kRun, "native"}
//
// comparison.h: how it measures. ledger.h: what it may spend. drift_guard.h: what it checks afterwards. Thread-safety:
// none; all calls come from the training thread. Cost: a step event is O(1), except for medians over at most 256
// values.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/tune/action.h"
#include "runtime/tune/arms/arm_set.h"
#include "runtime/tune/arms/shape_table.h"
#include "runtime/tune/compile_turns.h"
#include "runtime/tune/config.h"
#include "runtime/tune/drift_guard.h"
#include "runtime/tune/ledger.h"
#include "runtime/tune/tuner_event.h"

namespace agspeed::runtime::tune {

enum class Phase { kObserving, kCapturing, kTuning, kSettled };
std::string_view toString(Phase phase);

/// The outcome, with its evidence.
struct Decision {
  std::string arm;
  std::string reason;
  std::optional<Interval> ratio;  ///< step time divided by eager's; absent without measurement
  int64_t step = 0;
  double wallSeconds = 0;
  bool isFromDatabase = false;
};

/// One entry of the report's timeline.
struct TimelineEntry {
  std::string what;  ///< capture, compile, load, resume, trial, forget, duel, more, decide, rollback, retune
  std::string arm;
  int64_t step = 0;
  double wallSeconds = 0;
  std::string reason;
};

class Tuner {
 public:
  /// Returns: invalid argument if the configuration is invalid.
  static StatusOr<std::unique_ptr<Tuner>> create(TunerConfig config);

  // Events ------------------------------------------------------------------------------------------------------------
  /// Reports an event. Returns invalid argument if the event is refused (tuner_event.h says when). Nothing has changed
  /// then.
  Status report(const TunerEvent& event);
  /// Starts re-checks against eager, because the caller suspects that the decision no longer holds. Requires: phase()
  /// is kSettled.
  void suspect() { guard_.suspect(); }
  /// Ends the running re-check without a result; the chosen arm runs.
  void abandonRecheck() {
    trial_.reset();
    guard_.forgoBurst();
    arms_.setCurrent(arms_.incumbent());
  }

  // Boundary ----------------------------------------------------------------------------------------------------------
  /// Decides what to do next. Returns the actions to carry out now, in order; usually none.
  std::vector<Action> advance();

  // Queries -----------------------------------------------------------------------------------------------------------
  static constexpr int64_t kForever = -1;
  Phase phase() const { return phase_; }
  /// Returns "tuning", "tuned" (a compiled arm was chosen) or "eager".
  std::string_view status() const;
  /// Returns the reason of the status, as a sentence.
  std::string statusReason() const;
  /// Returns the arm of the latest run action; eager at the start.
  const std::string& current() const { return arms_[arms_.current()].spec.name; }
  const std::optional<Decision>& decision() const { return decision_; }
  const Ledger& ledger() const { return ledger_; }
  /// Whether a compiled arm was chosen and is being compared with eager again.
  bool isRechecking() const {
    const bool isAsked = trial_ || rollbackRequest_ || guard_.isBursting();
    return phase_ == Phase::kSettled && arms_.hasProven() && isAsked;
  }
  /// shapes(): shape classes in the order of their numbers. stepLimits(): by number, the seconds above which steps of
  /// the chosen arm are suspicious.
  const std::vector<std::string>& shapes() const { return shapes_.names(); }
  std::map<int32_t, double> stepLimits() const { return arms_.stepLimits(); }
  /// Returns how many steps the driver need not report. It reports their sum as StepsSkipped, and the next step in
  /// full. Steps may be skipped after a decision, while the budget cannot pay for anything, and between samples while a
  /// compile disturbs short steps.
  int64_t quietSteps() const;
  /// Returns the findings so far as JSON text (findings.h), for Resumed in a later process. They have changed if
  /// numFindings() has changed.
  std::string findings() const { return arms_.findings(); }
  /// Returns a number that grows with every finished block and with every arm that lost.
  int64_t numFindings() const { return numBlocks_ + arms_.numLosses(); }
  /// Returns how many pairs of an earlier process still count.
  int32_t numResumedPairs() const { return arms_.numResumedPairs(); }
  /// Returns all data for the report, as JSON text; README.md describes the format.
  std::string snapshot() const;
  /// Returns the decision for the database, as JSON text. Requires: decision().has_value().
  std::string decisionRecord() const;

 private:
  enum class TrialKind { kVersusEager, kDuel, kRecheck };
  /// One ABBA block in progress.
  struct Trial {
    TrialKind kind;
    size_t arm;
    size_t reference;
    AbbaSchedule schedule;

    /// The arm that has to run the next step.
    size_t next() const { return schedule.next() == Side::kArm ? arm : reference; }
  };
  static constexpr size_t kEager = ArmSet::kEager;

  explicit Tuner(TunerConfig config);

  // tuner.cpp: events, judgements and actions
  template <typename Event>
  Status on(const Event& event);
  void accountStep(size_t arm, int32_t shape, const StepFinished& step, bool isAfterSwitch);
  void feedTrial(size_t arm, int32_t shape, const StepFinished& step, bool counts);
  void finishBlock();
  void judgeVersusEager(size_t arm);
  void judgeDuel(size_t arm);
  void apply(const Action& action);
  void settle(size_t arm, const std::string& reason);
  void rollBack(const std::string& reason);
  void scheduleRetune();
  void log(std::string what, std::string arm, std::string reason = {});

  // tuner_plan.cpp: what to do next
  void plan();
  void planObserving();
  void planCached();
  void planDeterministic();
  void planTuning();
  void planMax();
  void planSettled();
  bool planLoad();
  bool planBlock();
  bool planCompile();
  void planDecision();
  void skipNeedless();
  void advanceArm(size_t arm);
  /// Returns whether there is an action.
  bool propose(std::optional<Action> action);
  void propose(ActionKind kind, size_t arm, std::string reason = {});
  void want(size_t arm);
  double blockSeconds(size_t arm) const;
  bool isTrialAffordable() const;
  void startBlock(TrialKind kind, size_t arm, size_t reference);
  int64_t quietSearchSteps() const;
  double nextCostSeconds() const;
  int64_t recheckEagerSteps() const;
  int32_t runSteps(double stepSeconds) const;

  // tuner_plan_max.cpp: max mode
  bool startNextCompile();
  bool planBlockBeside(size_t compiling);
  bool planConfirmation();
  void planTurn(size_t arm);

  TunerConfig config_;
  Ledger ledger_;
  DriftGuard guard_;
  ShapeTable shapes_;
  ArmSet arms_;
  CompileTurns turns_;
  Phase phase_ = Phase::kObserving;
  std::optional<Trial> trial_;
  int64_t numBlocks_ = 0;  ///< number of finished blocks
  std::optional<Decision> decision_;
  std::optional<std::string> rollbackRequest_;

  int32_t numGrowths_ = 0;
  int32_t numRollbacks_ = 0;
  int32_t numRetunes_ = 0;
  std::optional<int64_t> retuneAtStep_;
  std::vector<Action> proposals_;
  std::vector<TimelineEntry> timeline_;
};

}  // namespace agspeed::runtime::tune

// SPDX-License-Identifier: Apache-2.0
// Tuner: decides which arm runs the next training step. It is a pure state machine: events go in, and advance() returns
// actions. It has no clock, thread or callback, so a simulated trace exercises all of it.
//
//   observing --capture--> capturing --captured--> tuning --decide--> settled --(rollback, new arm)--> tuning | settled
//
// The driver (python/agspeed/tuning) reports events, calls advance() at every step boundary and carries out the
// returned actions, in order. While tuning, the best arm proven so far runs; eager runs until one is proven.
//
//   tuner.stepFinished({.arm = "eager", .seconds = 0.0021, .shape = "8x128"});
//   for (const Action& action : tuner.advance()) carryOut(action);   // e.g. {kRun, "native"}
//
// comparison.h: how it measures. ledger.h: what it may spend. drift_guard.h: what it checks afterwards.
// Thread-safety: none; all calls come from the training thread. Cost: a step event is O(1), except for medians over 64
// values.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/tune/action.h"
#include "runtime/tune/arm.h"
#include "runtime/tune/config.h"
#include "runtime/tune/drift_guard.h"
#include "runtime/tune/findings.h"
#include "runtime/tune/ledger.h"

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

/// Progress of an arm's compile, load or gate. Costs add up over events.
struct ArmEvent {
  std::string arm;
  ArmState state = ArmState::kReady;
  std::string reason;
  double backgroundSeconds = 0;
  double foregroundSeconds = 0;
};

class Tuner {
 public:
  /// Returns: invalid argument if the configuration is invalid.
  static StatusOr<std::unique_ptr<Tuner>> create(TunerConfig config);

  // Events ------------------------------------------------------------------------------------------------------------
  /// Time that the driver needed before the first step: loading itself, looking up earlier decisions.
  void started(double foregroundSeconds) { ledger_.addStartUp(foregroundSeconds); }
  void captureFinished(double foregroundSeconds);
  void captureFailed(const std::string& reason, double foregroundSeconds);
  /// A step captured more graphs: living arms have to compile these as well, and are measured again. Only while tuning,
  /// and a bounded number of times. Arms must not be measured with graphs that run eagerly, because that would
  /// understate them.
  void captureGrew();
  /// A better estimate of the capture's foreground cost, e.g. from the database or from an earlier model.
  void expectCapture(double foregroundSeconds) { config_.captureSeconds = foregroundSeconds; }
  /// A better estimate of the cost of loading arms: no arm is expected to take less, now that the model is known.
  void expectLoads(double foregroundSeconds);
  /// An arm that failed is out for good; if it was the chosen one, eager runs from the next boundary on.
  /// Returns: invalid argument for an unknown arm, or for eager.
  Status armChanged(const ArmEvent& event);
  /// One more arm, e.g. a refinement. After a decision, tuning resumes for it.
  Status addArm(ArmSpec spec);
  /// Returns: invalid argument for an unknown arm or seconds that are not positive and finite.
  Status stepFinished(const StepReport& step);
  /// `count` steps ran without a report, within quietSteps(), in `seconds` together.
  void stepsSkipped(int64_t count, double seconds);
  /// Continues from the findings() of an earlier process that captured the same graphs: its pairs count, and arms that
  /// lost are not compiled again. Call it between the capture, or captureGrew(), and the next advance().
  /// Returns: invalid argument with the reason if the text cannot be used; nothing has changed then.
  Status resume(std::string_view findings);
  /// Training stopped for work of the driver that belongs to no arm.
  void paused(double foregroundSeconds) { ledger_.addForeground(foregroundSeconds); }
  /// The database has a decision for this arm. Call it before anything was captured; later calls are refused.
  Status adopt(const std::string& arm);
  /// Requires settled. Starts re-checks against eager, because the caller suspects that the decision no longer holds.
  void suspect() { guard_.suspect(); }
  /// Ends the running re-check without a result; the chosen arm runs.
  void abandonRecheck() {
    trial_.reset();
    guard_.forgoBurst();
    current_ = incumbent_;
  }
  /// `numSearches` >= 1 tuners of this training loop, including this one, share the budget of tuning.
  void shareBudget(int64_t numSearches) { ledger_.shareAmong(numSearches); }

  // Boundary ----------------------------------------------------------------------------------------------------------
  /// Plans. Returns the actions to carry out now, in order; usually none.
  std::vector<Action> advance();

  // Queries -----------------------------------------------------------------------------------------------------------
  static constexpr int64_t kForever = -1;
  Phase phase() const { return phase_; }
  /// "tuning", "tuned" (a compiled arm was chosen) or "eager".
  std::string_view status() const;
  /// The reason of the status, as a sentence.
  std::string statusReason() const;
  /// The arm of the latest run action; eager at the start.
  const std::string& current() const { return arms_[current_].spec.name; }
  const std::optional<Decision>& decision() const { return decision_; }
  const Ledger& ledger() const { return ledger_; }
  /// Whether it is settled on a compiled arm that is being compared with eager again.
  bool isRechecking() const {
    const bool isAsked = trial_ || rollbackRequest_ || guard_.isBursting();
    return phase_ == Phase::kSettled && incumbent_ != kEager && isAsked;
  }
  /// shapes(): shape classes in the order of their numbers. stepLimits(): by number, the seconds above which steps of
  /// the chosen arm are suspicious.
  const std::vector<std::string>& shapes() const { return shapes_; }
  std::map<int32_t, double> stepLimits() const { return stepLimits(incumbent_); }
  /// How many steps the driver need not report (it reports their sum through stepsSkipped, and the next one in full):
  /// after a decision, while the budget cannot pay for anything, and between samples while a compile disturbs short
  /// steps.
  int64_t quietSteps() const;
  /// For resume(), as JSON text; findings.h describes the format. It has changed if numFindings() has.
  std::string findings() const;
  /// Grows with every finished block and with every arm that lost.
  int64_t numFindings() const { return numFindings_; }
  /// How many pairs of an earlier process still count.
  int32_t numResumedPairs() const;
  /// All data for the report, as JSON text; README.md describes the format.
  std::string snapshot() const;
  /// The decision for the database, as JSON text. Requires: decision().has_value().
  std::string decisionRecord() const;

 private:
  enum class TrialKind { kVersusEager, kDuel, kRecheck };
  /// One ABBA block in progress.
  struct Trial {
    TrialKind kind;
    size_t arm;
    size_t reference;
    AbbaSchedule schedule;
  };
  struct EagerPeak {
    int64_t bytes = 0;
    bool isFromBeforeLoad = false;  ///< loaded arms hold memory, which raises later peaks of eager
  };
  static constexpr size_t kEager = 0;

  explicit Tuner(TunerConfig config);

  // tuner.cpp: bookkeeping of events, applying actions
  std::optional<size_t> findArm(const std::string& name) const;
  /// The first arm except eager for which `predicate` is true.
  template <typename Predicate>
  std::optional<size_t> firstArm(Predicate predicate) const {
    const auto found = std::find_if(arms_.begin() + 1, arms_.end(), predicate);
    return found == arms_.end() ? std::nullopt : std::optional<size_t>(found - arms_.begin());
  }
  int32_t shapeIndex(const std::string& shape);
  /// Whether no step has counted for long, because every batch has its own shape or every step is disturbed.
  bool isIncomparable() const;
  bool isCompileRunning() const;
  void accountStep(size_t arm, int32_t shape, const StepReport& step, bool isAfterSwitch);
  void recordEagerPeak(int32_t shape, int64_t bytes);
  void feedTrial(size_t arm, int32_t shape, const StepReport& step, bool counts);
  bool isHopeless(const Arm& arm) const;
  void apply(const Action& action);
  void beginCompile(size_t arm, Level level);
  void settle(size_t arm, const std::string& reason);
  std::map<int32_t, double> stepLimits(size_t arm) const;
  void rollBack(const std::string& reason);
  void scheduleRetune();
  void dismiss(size_t arm);
  void log(std::string what, std::string arm, std::string reason = {});

  // snapshot.cpp: texts about this state, and findings of an earlier process
  void takeEarlier(Arm& arm);
  std::optional<double> eagerPairedSeconds() const;

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
  std::optional<size_t> leastMeasured() const;
  bool planCompile();
  void planPriority(size_t arm);
  void planDecision();
  void skipNeedless();
  void advanceArm(size_t arm);
  void propose(ActionKind kind, size_t arm, std::string reason = {});
  void want(size_t arm);
  double excessSeconds(size_t arm) const;
  double blockSeconds(size_t arm) const;
  bool isBlockAffordable(size_t arm) const;
  bool isTrialAffordable() const;
  void startBlock(TrialKind kind, size_t arm, size_t reference);
  double eagerStepSeconds() const;
  double stepSeconds() const;
  int64_t quietSearchSteps() const;
  double nextCostSeconds() const;
  int64_t recheckEagerSteps() const;
  int32_t runSteps(double stepSeconds) const;

  // tuner_plan_max.cpp: max mode, and sharing the machine while training waits for a compile
  bool startNextCompile();
  std::optional<size_t> nextToLoad(bool isCompiling) const;
  bool isMeasuringBeside() const;
  static bool isQuick(const Arm& arm);
  bool isFirstCompileOver() const;
  bool planBlockBeside(size_t compiling);
  bool planConfirmation();
  void planTurn(size_t arm);
  [[nodiscard]] bool takesTurns() const;
  void proposeWait(size_t arm, double seconds);
  void beginTurn();
  void beginFirstSteps(const Arm& arm);
  bool setCompileLevel(size_t arm, Level level);
  bool isRested() const;

  // tuner_judge.cpp: evaluating the measurements
  void finishBlock();
  void judgeVersusEager(size_t arm);
  void judgeDuel(size_t arm);
  bool isFutile(const Arm& arm) const;
  static bool isClearGain(const Arm& arm, double gain);
  bool hasSlowSteps(const Arm& arm) const;
  bool cannotBeat(size_t arm, size_t rival) const;
  std::optional<size_t> findBetter(size_t arm) const;
  void accept(size_t arm, const Interval& ratio);
  void lose(size_t arm, std::string reason);
  void loseTo(size_t arm, size_t winner, const std::string& evidence);
  void disqualify(size_t arm, std::string reason);
  /// Reopens arms that lost to `arm` and whose ratio to eager is below `limit`.
  void reviveBeatenBy(const std::string& arm, double limit = std::numeric_limits<double>::infinity());
  std::optional<size_t> nextChallenger();
  double bestRatio() const;
  std::string describeGain(size_t arm) const;
  std::string describeEager() const;
  std::map<int32_t, int64_t> eagerPeaks() const;

  TunerConfig config_;
  Ledger ledger_;
  DriftGuard guard_;
  std::vector<Arm> arms_;  ///< Invariant: arms_[0] is eager
  Phase phase_ = Phase::kObserving;
  size_t current_ = kEager;    ///< the arm that should run
  size_t lastRan_ = kEager;    ///< the arm that ran last
  size_t incumbent_ = kEager;  ///< best arm proven so far
  std::optional<Trial> trial_;
  std::vector<ArmFindings> earlier_;  ///< findings about arms that do not exist yet
  int64_t numFindings_ = 0;
  std::optional<size_t> cached_;  ///< the arm named by the database, until it is settled or fails
  std::optional<Decision> decision_;
  std::optional<std::string> rollbackRequest_;

  Level compileLevel_ = Level::kIdle;
  double raisedUntil_ = 0;       ///< in wall seconds
  double turnEndsAt_ = 0;        ///< in trained seconds: until then steps run and a compile is suspended
  int64_t firstStepsEndAt_ = 0;  ///< number of a step; 0 if no arm that was compiled in the background is proven yet
  double foregroundAtStep_ = 0;  ///< the ledger's value when the latest step ended
  bool hasLoaded_ = false;
  std::unordered_map<std::string, int32_t> shapeIndices_;
  std::vector<std::string> shapes_;
  int32_t numBlocks_ = 0;     ///< blocks begun while there were too many shapes for one run
  int32_t numUncounted_ = 0;  ///< steps in a row that did not count, except during compiles
  double lastInflation_ = 0;  ///< of the last step that ran beside a compile
  std::map<int32_t, EagerPeak> eagerPeaks_;
  int32_t numGrowths_ = 0;
  int32_t numRollbacks_ = 0;
  int32_t numRetunes_ = 0;
  std::optional<int64_t> retuneAtStep_;
  std::vector<Action> proposals_;
  std::vector<TimelineEntry> timeline_;
};

}  // namespace agspeed::runtime::tune

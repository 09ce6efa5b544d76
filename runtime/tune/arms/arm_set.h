// SPDX-License-Identifier: Apache-2.0
// ArmSet: the arms of a tuner, the arm that runs, the best proven arm, and which arm lost to which.
//
//   arms.add({.name = "native"}, ""); arms.find("native") == 1; arms[1].state = ArmState::kReady; arms.promote(1);
//
// Functions identify an arm by its index, which never changes. Index 0 is eager, which is always ready. Not
// thread-safe; owned by the Tuner.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/tune/arms/arm.h"
#include "runtime/tune/arms/findings.h"

namespace agspeed::runtime::tune {

class ArmSet {
 public:
  static constexpr size_t kEager = 0;

  ArmSet();

  size_t size() const { return arms_.size(); }
  Arm& operator[](size_t arm) { return arms_[arm]; }
  const Arm& operator[](size_t arm) const { return arms_[arm]; }
  const Arm& eager() const { return arms_[kEager]; }
  auto begin() { return arms_.begin(); }
  auto end() { return arms_.end(); }
  auto begin() const { return arms_.begin(); }
  auto end() const { return arms_.end(); }
  std::optional<size_t> find(const std::string& name) const;
  /// Returns the first arm except eager for which `predicate` is true.
  template <typename Predicate>
  std::optional<size_t> first(Predicate predicate) const {
    const auto found = std::find_if(arms_.begin() + 1, arms_.end(), predicate);
    return found == arms_.end() ? std::nullopt : std::optional<size_t>(found - arms_.begin());
  }
  /// Returns the arm with the fewest blocks among ready arms with an open verdict, or nothing.
  std::optional<size_t> leastMeasured() const;
  bool isAnyCompiling() const;

  /// Adds an arm, with the findings of an earlier process about it. If `whySkipped` is not empty, the arm is skipped
  /// for this reason. Returns: invalid argument for a name that is empty or exists already.
  Status add(ArmSpec spec, std::string whySkipped);
  /// Skips all arms that still have to be compiled.
  void skipWaiting(const std::string& reason);
  /// Drops all measurements, because all arms that are not dead have to compile other graphs.
  void forgetAll();
  /// Sets the verdicts of all ready arms to open, and drops their evidence.
  void reopenReady();

  // Roles -------------------------------------------------------------------------------------------------------------
  /// The arm that should run.
  size_t current() const { return current_; }
  void setCurrent(size_t arm) { current_ = arm; }
  /// Records that a step of the arm has finished. Returns whether the step before it ran another arm.
  bool isSwitch(size_t arm) { return std::exchange(lastRan_, arm) != arm; }
  /// The best arm proven so far; eager at the start.
  size_t incumbent() const { return incumbent_; }
  bool hasProven() const { return incumbent_ != kEager; }
  const Arm& best() const { return arms_[incumbent_]; }
  void promote(size_t arm) { incumbent_ = arm; }
  /// The arm that the database names, until it is chosen or fails.
  std::optional<size_t> stored() const { return stored_; }
  void setStored(std::optional<size_t> arm) { stored_ = arm; }
  /// Carries out the decision: makes the arm the incumbent, accepted and confirmed. Gives up running compiles.
  void choose(size_t arm, const std::string& reason);

  // Winning and losing ------------------------------------------------------------------------------------------------
  void lose(size_t arm, std::string reason);
  /// Records that `arm` lost to `winner`. `evidence`: the end of the reason, after "no better than" and the winner's
  /// name.
  void loseTo(size_t arm, size_t winner, const std::string& evidence);
  /// Records that the arm lost for another reason than its typical speed. Reopens arms that lost to it in speed,
  /// because the reason does not apply to them.
  void disqualify(size_t arm, std::string reason);
  /// Reopens arms that lost to `arm` and whose ratio to eager is below `limit`, so that they can be chosen instead.
  void reviveBeatenBy(size_t arm, double limit = std::numeric_limits<double>::infinity());
  /// Records that the arm has failed. After a decision, incumbent and verdicts stay as they are, for the rollback.
  void dismiss(size_t arm, bool isDecided);
  /// Grows with every arm that lost.
  int64_t numLosses() const { return numLosses_; }

  /// Returns the accepted arm to compare with the incumbent next (a duel). If the pairs with eager already show which
  /// arm is better, there is no duel, and the better arm becomes the incumbent.
  std::optional<size_t> nextChallenger(const TunerConfig& config);
  /// Returns an arm to which this one loses (see losesTo()), or nothing.
  std::optional<size_t> findRival(size_t arm, const TunerConfig& config) const;
  /// Returns the lowest cautiousRatio() of all arms; at most 1, the ratio of eager itself.
  double bestRatio() const;
  /// Returns why eager stays, as a sentence. `isIncomparable`: see ShapeTable.
  std::string describeEager(bool isIncomparable, const TunerConfig& config) const;

  // Step times --------------------------------------------------------------------------------------------------------
  /// Returns the median of undisturbed eager steps over all shapes; 0 if there are none.
  double eagerSeconds() const;
  /// Returns eagerSeconds(). If eager never ran, for example after a decision from the database, returns the
  /// incumbent's time.
  double stepSeconds() const;
  /// Returns how much longer one step of the arm is expected to take than an eager step.
  double excessSeconds(size_t arm) const;
  /// Returns DriftGuard::stepLimit() of the incumbent by shape class.
  std::map<int32_t, double> stepLimits() const;

  // Findings of this and of an earlier process ------------------------------------------------------------------------
  /// Returns: invalid argument with the reason if the text cannot be used; nothing has changed then.
  Status resume(std::string_view findings);
  std::string findings() const;
  /// How many pairs of an earlier process still count.
  int32_t numResumedPairs() const;

 private:
  void takeEarlier(Arm& arm);

  std::vector<Arm> arms_;  ///< Invariant: arms_[0] is eager
  size_t current_ = kEager;
  size_t lastRan_ = kEager;
  size_t incumbent_ = kEager;
  std::optional<size_t> stored_;
  int64_t numLosses_ = 0;
  std::vector<ArmFindings> earlier_;  ///< findings about arms that do not exist yet
};

}  // namespace agspeed::runtime::tune

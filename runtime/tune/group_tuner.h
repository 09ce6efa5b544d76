// SPDX-License-Identifier: Apache-2.0
// GroupTuner: one tuner for all ranks of a group, with a copy at each rank.
//
// A Tuner is deterministic: copies that get the same input ask for the same actions. So a rank keeps its events in a
// record. At a *rank sync*, a step border that all ranks reach in the same state, the ranks exchange their records.
// Each rank combines all records and feeds them to its copy. The actions that the copy then asks for apply at every
// rank from the next border on. No rank is special, so the loss of a leader cannot stop the group. This class has no
// clock, thread, socket or store: the driver exchanges texts (python/agspeed/distributed/rank_sync.py).
//
//   group.report(StepFinished{.arm = "eager", .seconds = 0.0021, .shape = "8x128"});       // recorded
//   std::string mine = group.takeRecord();  // exchange, in the same step at all ranks
//   AG_RETURN_IF_ERROR(group.sync(records));
//   for (const Action& action : group.takeActions()) carryOut(action);               // at the next border
//
// Records combine as follows. Times and memory are the highest of any rank, because all wait for the slowest. An arm
// has the state of the rank where it is least advanced. If it failed or was rejected or skipped at one rank, this holds
// for the group. Data that may come from only one rank (new arms, an earlier run's findings, a stored decision) is
// taken from the lowest rank that has it.
//
// A decision takes two steps: first kRefine, to which ranks may answer with new arms, then kDecide. After that there
// are no syncs. Each rank watches its own steps, which become slower if any rank's steps do. A candidate that fails at
// one rank rolls back only that rank. The driver finds out when all ranks are suspicious. All ranks then call
// recheck(), and syncs resume until the decision is confirmed or rolled back. The group ends if a rank leaves, if the
// digests of copies differ, or if an exchange fails: see isOverBecause(). During a recheck these events end only the
// recheck. Thread-safety: none.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/tune/rank_record.h"
#include "runtime/tune/tuner.h"

namespace agspeed::runtime::tune {

class GroupTuner {
 public:
  /// `names`: the name of each rank for reasons, e.g. "rank 1 on node3". `config` must be the same at all ranks.
  /// Returns: as Tuner::create; invalid argument with fewer than two ranks.
  static StatusOr<std::unique_ptr<GroupTuner>> create(TunerConfig config, std::vector<std::string> names);

  /// Records an event for the next sync. Several steps of one arm between two syncs count as one step. After the last
  /// sync, most events are ignored, but a failure of the chosen arm takes effect at once. Returns: see Tuner::report().
  Status report(const TunerEvent& event);
  /// Stops tuning at this rank. The next sync informs the other ranks.
  void leave(std::string reason) { record_.leaving = std::move(reason); }

  // Rank syncs --------------------------------------------------------------------------------------------------------
  /// Returns this rank's record as text. Later events go into the record of the next sync.
  std::string takeRecord();
  /// Combines the records of all ranks. `records`: the texts of takeRecord() for this sync, by rank. Returns: invalid
  /// argument if their number is wrong or one cannot be read; this ends the group.
  Status sync(const std::vector<std::string>& records);
  /// Ends the group, because the exchange failed or no sync will follow.
  void end(std::string reason);
  /// Resumes syncs to compare the decision with eager again. Requires: all ranks are suspicious, and call this at the
  /// same step.
  void recheck();
  /// Drops this rank's suspicion, because other ranks are not suspicious. This rank becomes suspicious again later.
  void postponeRecheck() { watch_.postponeBurst(); }
  /// Returns the actions of all syncs since the last call, in order.
  std::vector<Action> takeActions();
  /// Returns how many of the next syncs each rank skips, because they would exchange nothing. The latest sync has
  /// determined this number.
  int64_t numQuietSyncs() const { return numQuiet_; }

  // Queries -----------------------------------------------------------------------------------------------------------
  /// Returns why the group has ended. Empty while the group tunes, and after a decision.
  const std::string& isOverBecause() const { return over_; }
  bool isOver() const { return !over_.empty(); }
  /// Whether the latest sync asked for kRefine.
  bool isRefining() const { return isRefining_; }
  /// Whether no sync follows for now: the group has decided or ended.
  bool isSettled() const { return (isDecided_ && !isRechecking_) || isOver(); }
  bool isRechecking() const { return isRechecking_; }
  /// Whether this rank doubts the decision, because its steps became slower or because the decision was never measured
  /// in this job.
  bool isSuspicious() const { return isWatching_ && !isRechecking_ && watch_.isBursting(); }
  /// See Tuner.
  int64_t quietSteps() const;
  const Tuner& tuner() const { return *tuner_; }

 private:
  GroupTuner(const TunerConfig& config, std::unique_ptr<Tuner> tuner, std::vector<std::string> names);

  Status armChangedLate(const ArmChanged& event);
  StatusOr<RankRecord> recordOf(const std::string& text) const;
  Status checkRecords(const std::vector<RankRecord>& records) const;
  void feed(const std::vector<RankRecord>& records);
  void feedCapture(const std::vector<RankRecord>& records);
  void feedArms(const std::vector<RankRecord>& records);
  void feedStep(const std::vector<RankRecord>& records);
  ArmChanged combined(const std::string& arm) const;
  void plan();
  void track(const Action& action);
  void startWatch();
  void watchStep(const StepFinished& step);
  std::vector<ArmChanged>& ofRanks(const std::string& arm);

  std::unique_ptr<Tuner> tuner_;
  std::vector<std::string> names_;
  RankRecord record_;                                           ///< for the next sync
  RankRecord sent_;                                             ///< the last record that takeRecord() returned ...
  std::string sentText_;                                        ///< ... and its text
  std::vector<Action> actions_;                                 ///< actions that were not taken yet
  std::map<std::string, std::vector<ArmChanged>> armsOfRanks_;  ///< by arm, then rank: its state there
  std::vector<std::optional<CaptureFailed>> captures_;          ///< by rank, of the running capture
  std::string findings_;                                        ///< for Resumed, once graphs exist
  uint64_t digest_;
  int64_t numQuiet_ = 0;
  bool isRefining_ = false;   ///< whether the next sync brings the answers to kRefine
  bool hasSwitched_ = false;  ///< the latest sync changed the arm; the running step uses the old one
  bool isDecided_ = false;
  std::string over_;

  DriftGuard watch_;  ///< watches this rank's steps after the decision; the tuner's own guard judges re-checks
  std::map<std::string, int32_t> watchedShapes_;
  bool mayWatch_;
  bool isWatching_ = false;
  bool isRechecking_ = false;
};

}  // namespace agspeed::runtime::tune

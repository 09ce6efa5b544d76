// SPDX-License-Identifier: Apache-2.0
// GroupTuner: one tuner for all ranks of a group, with a copy at each rank.
//
// A Tuner is deterministic: copies that get the same input ask for the same actions. So a rank keeps its events in a
// record. At a *rank sync*, a step border that all ranks reach in the same state, the ranks exchange their records.
// Each rank combines all records and feeds them to its copy. The actions that the copy then asks for apply at every
// rank from the next border on. There is no leader whose loss would matter, and no clock, thread, socket or store here:
// the driver exchanges texts (python/agspeed/distributed/rank_sync.py).
//
//   group.report(StepFinished{.arm = "eager", .seconds = 0.0021, .shape = "8x128"});       // recorded
//   std::string mine = group.takeRecord();  // exchange, in the same step at all ranks
//   AG_RETURN_IF_ERROR(group.sync(records));
//   for (const Action& action : group.takeActions()) carryOut(action);               // at the next border
//
// Records combine as follows. Times and memory are the highest of any rank, because all wait for the slowest. An arm
// has the state of the rank where it is least advanced; if it is out at one rank, it is out. Data that may come from
// only one rank (new arms, an earlier run's findings, a stored decision) is taken from the lowest rank that has it.
//
// A decision takes two steps: first kRefine, to which ranks may answer with new arms, then kDecide. After that there
// are no syncs. Each rank watches its own steps, which become slower if any rank's steps do. A candidate that fails
// at one rank rolls back only that rank. Once all ranks are suspicious (the driver finds out) they call recheck(), and
// syncs resume until the decision is confirmed or rolled back. The group ends if a rank leaves, if copies differ (by
// their digests) or if an exchange fails: see isOverBecause(). During a recheck these end only the recheck.
// Thread-safety: none.
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
  /// names: by rank, the name used in reasons, e.g. "rank 1 on node3". The config has to be the same at all ranks.
  /// Returns: as Tuner::create; invalid argument with fewer than two ranks.
  static StatusOr<std::unique_ptr<GroupTuner>> create(TunerConfig config, std::vector<std::string> names);

  /// Records an event for the next sync. Several steps of one arm between two syncs count as one step. After the last
  /// sync most events are of no use, but a failure of the chosen arm is answered at once.
  /// Returns: as Tuner::report, if it is answered.
  Status report(const TunerEvent& event);
  /// This rank stops tuning; the next sync informs the others.
  void leave(std::string reason) { record_.leaving = std::move(reason); }

  // Rank syncs --------------------------------------------------------------------------------------------------------
  /// This rank's record, as text; later events go into the record of the next sync.
  std::string takeRecord();
  /// `records`: the texts of takeRecord() at all ranks for this sync, by rank.
  /// Returns: invalid argument for a wrong number of records or an unreadable one; this ends the group.
  Status sync(const std::vector<std::string>& records);
  /// The exchange failed, or the driver knows that no sync will follow.
  void end(std::string reason);
  /// All ranks are suspicious, and call this at the same step. Syncs follow, as in tuning.
  void recheck();
  /// The others are not suspicious: this rank continues to watch, and becomes suspicious again later.
  void postponeRecheck() { watch_.postponeBurst(); }
  /// The actions of all syncs since the last call, in order.
  std::vector<Action> takeActions();
  /// How many of the next syncs would exchange nothing, by the latest one; each rank skips them.
  int64_t numQuietSyncs() const { return numQuiet_; }

  // Queries -----------------------------------------------------------------------------------------------------------
  /// Empty while the group tunes and after a decision, else why it has ended.
  const std::string& isOverBecause() const { return over_; }
  bool isOver() const { return !over_.empty(); }
  /// Whether the latest sync asked for kRefine.
  bool isRefining() const { return isRefining_; }
  /// Whether no sync follows for now: the group has decided or ended.
  bool isSettled() const { return (isDecided_ && !isRechecking_) || isOver(); }
  bool isRechecking() const { return isRechecking_; }
  /// Whether this rank doubts the decision, by its own steps or because it was never measured in this job.
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
  void note(const Action& action);
  void startWatch();
  void watchStep(const StepFinished& step);
  std::vector<ArmChanged>& ofRanks(const std::string& arm);

  std::unique_ptr<Tuner> tuner_;
  std::vector<std::string> names_;
  RankRecord record_;                                           ///< for the next sync
  RankRecord sent_;                                             ///< what takeRecord() returned last ...
  std::string sentText_;                                        ///< ... and its text
  std::vector<Action> actions_;                                 ///< actions that were not taken yet
  std::map<std::string, std::vector<ArmChanged>> armsOfRanks_;  ///< by arm, then rank: its state there
  std::vector<std::optional<CaptureFailed>> captures_;          ///< by rank, of the running capture
  std::string findings_;                                        ///< to resume from once graphs exist
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

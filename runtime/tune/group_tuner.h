// SPDX-License-Identifier: Apache-2.0
// GroupTuner: one tuner for all ranks of a group, as a copy at each of them.
//
// A Tuner is deterministic: copies that are told the same things ask for the same things. So a rank keeps what happens
// to it in a record; at a *meeting*, a step border that all ranks reach in the same state, the ranks exchange their
// records, and each feeds all of them, combined, to its copy. What the copy then asks for holds at every rank from the
// next border on. There is no leader whose loss would matter, no clock, thread, socket or store here: the driver
// exchanges texts (python/agspeed/distributed/meetings.py).
//
//   group.stepFinished({.arm = "eager", .seconds = 0.0021, .shape = "8x128"});       // recorded
//   std::string mine = group.takeRecord();  // exchange, in the same step at all ranks
//   AG_RETURN_IF_ERROR(group.meet(records));
//   for (const Action& action : group.takeActions()) carryOut(action);               // at the next border
//
// How records combine: times and memory are the highest of any rank, as all wait for the slowest; an arm is as far as
// it has come at the rank where it is least far, and out where it is out at one; what only one rank may say (new arms,
// an earlier run's findings, a stored decision) comes from the lowest rank that says it.
//
// A decision is asked for twice: first kRefine, to which ranks may answer with new arms, then kDecide. After that there
// are no meetings: each rank watches its own steps, which become slower where any rank's do, and a candidate that fails
// at one rank rolls back that rank alone. Once all ranks are suspicious (the driver finds out) they recheck(): meetings
// go on until the decision is confirmed or rolled back. A rank that leaves, copies that differ (by their digests) or a
// failed exchange end the group: see isOverBecause(); in a recheck they end that alone. Thread-safety: none.
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
  /// names: by rank, how to call it in reasons, e.g. "rank 1 on node3". Config has to be the same at all ranks.
  /// Returns: as Tuner::create; invalid argument without at least two ranks.
  static StatusOr<std::unique_ptr<GroupTuner>> create(TunerConfig config, std::vector<std::string> names);

  // Events, as of Tuner: recorded for the next meeting. Once no meeting follows, they go nowhere, but for a failure of
  // the arm that was decided on: it is answered at once.
  void started(double foregroundSeconds) { record_.startUpSeconds += foregroundSeconds; }
  void captureFinished(double foregroundSeconds) { record_.capture = {"", foregroundSeconds}; }
  void captureFailed(const std::string& reason, double foregroundSeconds) {
    record_.capture = {reason, foregroundSeconds};
  }
  void captureGrew();
  void expectCapture(double foregroundSeconds) { record_.captureEstimate = foregroundSeconds; }
  void expectLoads(double foregroundSeconds);
  Status armChanged(const ArmEvent& event);
  Status addArm(ArmSpec spec);
  /// Several between two meetings, of one arm, are one step.
  Status stepFinished(const StepReport& step);
  void stepsSkipped(int64_t count, double seconds);
  Status resume(std::string_view findings);
  void paused(double foregroundSeconds) { record_.pausedSeconds += foregroundSeconds; }
  Status adopt(const std::string& arm);
  void shareBudget(int64_t numSearches) { record_.numSearches = numSearches; }
  /// This rank tunes no longer; the next meeting tells the others.
  void leave(std::string reason) { record_.leaving = std::move(reason); }

  // Meetings ----------------------------------------------------------------------------------------------------------
  /// This rank's record, as text; what happens from now on is for the meeting after.
  std::string takeRecord();
  /// `records`: what takeRecord() gave at each rank for this meeting, by rank.
  /// Returns: invalid argument for another number of records or one that cannot be read; the group is over then.
  Status meet(const std::vector<std::string>& records);
  /// The exchange failed, or somebody else knows that no meeting will follow.
  void end(std::string reason);
  /// All ranks are suspicious, and call this at the same step: meetings follow, as in tuning.
  void recheck();
  /// The others are not suspicious: this rank watches on, and is suspicious again later.
  void postponeRecheck() { watch_.postponeBurst(); }
  /// What the meetings since the last call asked for, in order.
  std::vector<Action> takeActions();
  /// Meetings from now on, decided by the latest one, in which nothing would be said: each rank leaves them out.
  int64_t numQuietMeetings() const { return numQuiet_; }

  // Queries -----------------------------------------------------------------------------------------------------------
  /// Empty while the group tunes, else why it does not any longer. After a decision: empty.
  const std::string& isOverBecause() const { return over_; }
  bool isOver() const { return !over_.empty(); }
  /// The latest meeting asked for kRefine.
  bool isRefining() const { return isRefining_; }
  /// No meeting will follow for now: decided, or over.
  bool isSettled() const { return (isDecided_ && !isRechecking_) || isOver(); }
  bool isRechecking() const { return isRechecking_; }
  /// Steps of this rank make it doubt the decision, or nobody has measured that in this job.
  bool isSuspicious() const { return isWatching_ && !isRechecking_ && watch_.isBursting(); }
  /// As of Tuner.
  int64_t quietSteps() const;
  const Tuner& tuner() const { return *tuner_; }

 private:
  GroupTuner(const TunerConfig& config, std::unique_ptr<Tuner> tuner, std::vector<std::string> names);

  Status checkMeeting(const std::vector<RankRecord>& records) const;
  void feed(const std::vector<RankRecord>& records);
  void feedStart(const std::vector<RankRecord>& records);
  void feedCapture(const std::vector<RankRecord>& records);
  void feedArms(const std::vector<RankRecord>& records);
  void feedStep(const std::vector<RankRecord>& records);
  ArmEvent combined(const std::string& arm) const;
  void plan();
  void note(const Action& action);
  void startWatch();
  void watchStep(const StepReport& step);
  std::vector<ArmEvent>& ofRanks(const std::string& arm);

  std::unique_ptr<Tuner> tuner_;
  std::vector<std::string> names_;
  RankRecord record_;                                         ///< for the next meeting
  std::vector<Action> actions_;                               ///< not taken yet
  std::map<std::string, std::vector<ArmEvent>> armsOfRanks_;  ///< by arm, then rank: how far it has come there
  std::vector<std::optional<RankRecord::Capture>> captures_;  ///< by rank, of the capture under way
  std::string findings_;                                      ///< to resume from once there are graphs
  uint64_t digest_;
  int64_t numQuiet_ = 0;
  bool isRefining_ = false;   ///< the answers to kRefine are due
  bool hasSwitched_ = false;  ///< the latest meeting asked for another arm: the step under way runs the one before
  bool isDecided_ = false;
  std::string over_;

  DriftGuard watch_;  ///< of this rank's steps after the decision; the tuner's own guard judges rechecks
  std::map<std::string, int32_t> watchedShapes_;
  bool mayWatch_;
  bool isWatching_ = false;
  bool isRechecking_ = false;
};

}  // namespace agspeed::runtime::tune

// SPDX-License-Identifier: Apache-2.0
// Copies of one tuner on several ranks, in simulated jobs: slow and failing compiles, ranks that leave or die, and
// different arms on each rank. Everything follows from the seed, which a failure prints.
#include "runtime/tune/group_tuner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <random>

#include "runtime/base/format.h"

namespace agspeed::runtime::tune {
namespace {

constexpr int64_t kMostSyncs = 20'000;

/// The properties of one job.
struct Job {
  uint64_t seed = 1;
  int32_t numRanks = 2;
  Mode mode = Mode::kMax;
  double failure = 0;          ///< probability that an arm fails on a rank
  double death = 0;            ///< probability that the exchange of a sync fails
  double leaving = 0;          ///< probability that a rank leaves before a sync
  double growth = 0;           ///< probability that a step captures another graph on a rank
  double missedStep = 0;       ///< probability that a rank has no step to report
  double drift = 1;            ///< factor of the steps of compiled arms after the decision, on rank 1
  std::string storedAt0 = {};  ///< decision in rank 0's database
  std::string storedAt1 = {};
};

/// A rank, which carries out the actions of its copy at its own pace.
class Rank {
 public:
  Rank(const Job& job, int32_t number, std::vector<std::string> names)
      : job_(job), random_(job.seed * 64 + number), number_(number) {
    TunerConfig config;
    config.mode = job.mode;
    config.arms = {{"native", 1.0, 0.1}, {"inductor", 5.0, 1.0}, {"aot", 0.0, 0.1}};
    tuner_ = GroupTuner::create(std::move(config), std::move(names)).value();
    (void)tuner_->report(Started{0.01 * number});
    const std::string& stored = number == 0 ? job.storedAt0 : number == 1 ? job.storedAt1 : "";
    EXPECT_TRUE(stored.empty() || tuner_->report(Adopted{stored}).isOk());
  }

  GroupTuner& tuner() { return *tuner_; }
  const std::string& plan() const { return plan_; }

  /// Runs between two steps: reports the previous step, then carries out the copy's actions. The step's sync
  /// follows.
  void train() {
    reportStep();
    for (const Action& action : tuner_->takeActions()) carryOut(action);
    finishCompile();
    if (happens(job_.leaving)) tuner_->leave("restored");
    if (happens(job_.growth)) (void)tuner_->report(CaptureGrew{});
  }

 private:
  double draw() { return std::uniform_real_distribution<>(0, 1)(random_); }
  bool happens(double probability) { return draw() < probability; }

  void reportStep() {
    if (isCapturing_) {
      isCapturing_ = false;
      happens(job_.failure / 4) ? (void)tuner_->report(CaptureFailed{"no graph", 0.2})
                                : (void)tuner_->report(CaptureFinished{0.2 + 0.1 * draw()});
      return;
    }
    if (happens(job_.missedStep)) return;
    double ratio = plan_ == "native" ? 0.7 : plan_ == "inductor" ? 0.8 : plan_ == "mixed" ? 0.6 : 1.0;
    if (hasDecided_ && plan_ != kEagerArm) ratio *= job_.drift;  // all ranks wait for the slowest
    EXPECT_TRUE(tuner_->report(StepFinished{plan_, 0.02 * ratio * (1 + 0.02 * draw()), "8x8", 100, false}).isOk());
  }

  void carryOut(const Action& action) {
    switch (action.kind) {
      case ActionKind::kCapture: isCapturing_ = true; return;
      case ActionKind::kCompile:
        if (action.arm != "native" && action.arm != "inductor") {  // other arms have no compile in the background
          EXPECT_TRUE(tuner_->report(ArmChanged{action.arm, ArmState::kCompiled, "", 0, 0}).isOk());
          return;
        }
        EXPECT_TRUE(tuner_->report(ArmChanged{action.arm, ArmState::kCompiling, "", 0, 0}).isOk());
        compiling_ = action.arm;
        compileLeft_ = 1 + static_cast<int32_t>(8 * draw());
        return;
      case ActionKind::kWait: compileLeft_ = std::min(compileLeft_, 1); return;
      case ActionKind::kLoad: return load(action.arm);
      case ActionKind::kRun: plan_ = action.arm; return;
      case ActionKind::kRefine:
        if (number_ < 2 && happens(0.5)) {
          EXPECT_TRUE(tuner_->report(ArmAdded{{.name = number_ == 0 ? "mixed" : "other"}}).isOk());
        }
        return;
      case ActionKind::kDecide:
        hasDecided_ = true;
        plan_ = action.arm;
        return;
      case ActionKind::kRollback: plan_ = kEagerArm; return;
      case ActionKind::kPriority: return;
    }
  }

  void load(const std::string& arm) {
    const bool isPart = happens(0.3);
    const ArmState state = isPart ? ArmState::kLoading : happens(job_.failure) ? ArmState::kRejected : ArmState::kReady;
    EXPECT_TRUE(tuner_->report(ArmChanged{arm, state, "does not fit", 0, 0.1 * draw()}).isOk());
  }

  void finishCompile() {
    if (compiling_.empty() || --compileLeft_ > 0) return;
    const ArmState state = happens(job_.failure) ? ArmState::kFailed : ArmState::kCompiled;
    EXPECT_TRUE(tuner_->report(ArmChanged{compiling_, state, "no compiler", draw(), 0}).isOk());
    compiling_.clear();
  }

  const Job& job_;
  std::mt19937_64 random_;
  int32_t number_;
  std::unique_ptr<GroupTuner> tuner_;
  std::string plan_{kEagerArm};
  std::string compiling_;
  int32_t compileLeft_ = 0;
  bool isCapturing_ = false;
  bool hasDecided_ = false;
};

struct Group {
  explicit Group(Job wanted) : job(std::move(wanted)), random(job.seed) {
    std::vector<std::string> names;
    for (int32_t rank = 0; rank < job.numRanks; ++rank) names.push_back(formatText("rank {}", rank));
    for (int32_t rank = 0; rank < job.numRanks; ++rank) ranks.emplace_back(job, rank, names);
  }

  /// Trains until no sync follows, or for `most` syncs. Returns the number of syncs.
  int64_t train(int64_t most = kMostSyncs) {
    int64_t numSyncs = 0;
    while (numSyncs < most && !ranks.front().tuner().isSettled()) {
      for (int64_t quiet = ranks.front().tuner().numQuietSyncs(); quiet >= 0; --quiet) {
        for (Rank& rank : ranks) rank.train();
      }
      ++numSyncs;
      if (std::uniform_real_distribution<>(0, 1)(random) < job.death) {
        for (Rank& rank : ranks) rank.tuner().end("rank 1 cannot be reached");
        break;
      }
      std::vector<std::string> records;
      for (Rank& rank : ranks) records.push_back(rank.tuner().takeRecord());
      for (Rank& rank : ranks) EXPECT_TRUE(rank.tuner().sync(records).isOk()) << "seed " << job.seed;
      expectAlike();
      if (::testing::Test::HasFailure()) break;
    }
    for (Rank& rank : ranks) rank.train();  // carries out the decision
    for (Rank& rank : ranks) {
      EXPECT_TRUE(rank.tuner().isOver() || rank.plan() == ranks.front().plan()) << "seed " << job.seed;
    }
    return numSyncs;
  }

  void expectAlike() {
    const GroupTuner& first = ranks.front().tuner();
    for (Rank& rank : ranks) {
      const GroupTuner& other = rank.tuner();
      EXPECT_EQ(other.tuner().current(), first.tuner().current()) << "seed " << job.seed;
      EXPECT_EQ(other.tuner().phase(), first.tuner().phase()) << "seed " << job.seed;
      EXPECT_EQ(other.isSettled(), first.isSettled()) << "seed " << job.seed;
      EXPECT_EQ(other.isOverBecause(), first.isOverBecause()) << "seed " << job.seed;
      EXPECT_EQ(other.numQuietSyncs(), first.numQuietSyncs()) << "seed " << job.seed;
    }
  }

  Job job;
  std::mt19937_64 random;
  std::vector<Rank> ranks;
};

TEST(GroupTuner, AllRanksDecideOnTheFastestArm) {
  Group group({.seed = 3, .numRanks = 3});
  group.train();
  EXPECT_TRUE(group.ranks.front().tuner().isSettled());
  EXPECT_EQ(group.ranks.front().tuner().isOverBecause(), "");
  EXPECT_EQ(group.ranks[2].tuner().tuner().decision()->arm, group.ranks[2].plan());
  EXPECT_NE(group.ranks[2].plan(), kEagerArm);
}

TEST(GroupTuner, AnArmThatFailsAtOneRankIsOutForAllAndNamesTheRank) {
  Group group({.seed = 5});
  group.train(3);
  EXPECT_TRUE(group.ranks[1].tuner().report(ArmChanged{"native", ArmState::kFailed, "no compiler", 0, 0}).isOk());
  group.train();
  for (Rank& rank : group.ranks) {
    const std::string snapshot = rank.tuner().tuner().snapshot();
    EXPECT_NE(snapshot.find("no compiler (rank 1)"), std::string::npos) << snapshot;
    EXPECT_NE(rank.plan(), "native");
  }
}

TEST(GroupTuner, TheSlowestRankCounts) {
  std::unique_ptr<GroupTuner> tuner = GroupTuner::create({}, {"rank 0", "rank 1"}).value();
  ASSERT_TRUE(tuner->report(StepFinished{"eager", 0.010, "8x8", 5, false}).isOk());
  const std::string quick = tuner->takeRecord();
  ASSERT_TRUE(tuner->report(StepFinished{"eager", 0.030, "8x8", 7, false}).isOk());
  const std::string slow = tuner->takeRecord();
  ASSERT_TRUE(tuner->sync({quick, slow}).isOk());
  EXPECT_DOUBLE_EQ(tuner->tuner().ledger().trainedSeconds(), 0.030);
}

TEST(GroupTuner, AStoredDecisionOfAnyRankIsUsedByAll) {
  for (const bool isFirst : {true, false}) {
    Group group({.seed = 7, .storedAt0 = isFirst ? "native" : "", .storedAt1 = isFirst ? "" : "native"});
    group.train();
    for (Rank& rank : group.ranks) {
      EXPECT_EQ(rank.plan(), "native");
      EXPECT_TRUE(rank.tuner().tuner().decision()->isFromDatabase);
    }
  }
}

TEST(GroupTuner, ARankThatLeavesEndsTheGroupForAll) {
  Group group({.seed = 11});
  group.train(4);
  group.ranks[1].tuner().leave("restored");
  group.train();
  for (Rank& rank : group.ranks) EXPECT_EQ(rank.tuner().isOverBecause(), "rank 1 tunes no longer: restored");
}

TEST(GroupTuner, CopiesThatDifferEndTheGroup) {
  Group group({.seed = 13});
  group.train(4);
  GroupTuner& odd = group.ranks[1].tuner();
  const std::string mine = odd.takeRecord();
  ASSERT_TRUE(odd.sync({mine, mine}).isOk());
  const std::vector<std::string> records = {group.ranks[0].tuner().takeRecord(), odd.takeRecord()};
  for (Rank& rank : group.ranks) {
    EXPECT_FALSE(rank.tuner().sync(records).isOk());
    EXPECT_EQ(rank.tuner().isOverBecause(), "the tuner of rank 1 is in another state than that of rank 0");
  }
}

TEST(GroupTuner, TextsThatAreNoRecordsEndTheGroup) {
  for (const std::string text : {"", "{}", "[1]", "{\"digest\": \"x\"}", "\xff\xfe"}) {
    std::unique_ptr<GroupTuner> tuner = GroupTuner::create({}, {"rank 0", "rank 1"}).value();
    EXPECT_FALSE(tuner->sync({tuner->takeRecord(), text}).isOk()) << text;
    EXPECT_TRUE(tuner->isOver());
  }
}

TEST(GroupTuner, ARecordThatNoTextCanHoldEndsTheGroupAtEveryRank) {
  const std::vector<std::string> names = {"rank 0", "rank 1"};
  std::unique_ptr<GroupTuner> sick = GroupTuner::create({}, names).value();
  std::unique_ptr<GroupTuner> other = GroupTuner::create({}, names).value();
  ASSERT_TRUE(sick->report(StepFinished{"eager", std::numeric_limits<double>::infinity(), "8x8", 5, false}).isOk());
  const std::vector<std::string> records = {sick->takeRecord(), other->takeRecord()};
  EXPECT_FALSE(sick->sync(records).isOk());
  EXPECT_FALSE(other->sync(records).isOk());
  EXPECT_EQ(sick->isOverBecause(), other->isOverBecause());
}

TEST(GroupTuner, AFailureAfterTheDecisionRollsBackThatRankAlone) {
  Group group({.seed = 17});
  group.train();
  Rank& failing = group.ranks[1];
  const std::string plan = failing.plan();
  ASSERT_NE(plan, kEagerArm);
  ASSERT_TRUE(failing.tuner().report(ArmChanged{plan, ArmState::kFailed, "raised", 0, 0}).isOk());
  for (Rank& rank : group.ranks) rank.train();
  EXPECT_EQ(failing.plan(), kEagerArm);
  EXPECT_EQ(group.ranks[0].plan(), plan);
}

/// Trains after a decision until all ranks are suspicious, or for `most` steps. Returns whether they are.
bool trainUntilSuspicious(Group& group, int32_t most = 5000) {
  const auto isSuspicious = [](Rank& rank) { return rank.tuner().isSuspicious(); };
  for (int32_t step = 0; step < most; ++step) {
    if (std::all_of(group.ranks.begin(), group.ranks.end(), isSuspicious)) return true;
    for (Rank& rank : group.ranks) rank.train();
  }
  return false;
}

TEST(GroupTuner, ADecisionThatBecomesSlowerThanEagerIsRolledBackByAllRanks) {
  Group group({.seed = 19, .numRanks = 3});
  group.train();
  ASSERT_NE(group.ranks[0].plan(), kEagerArm);
  ASSERT_FALSE(trainUntilSuspicious(group)) << "nothing has become slower";
  group.job.drift = 2.5;
  ASSERT_TRUE(trainUntilSuspicious(group));
  for (Rank& rank : group.ranks) rank.tuner().recheck();
  const int64_t numSyncs = group.train();
  EXPECT_LT(numSyncs, 400);
  for (Rank& rank : group.ranks) {
    EXPECT_EQ(rank.plan(), kEagerArm);
    EXPECT_NE(rank.tuner().tuner().decision()->reason.find("became slower than eager"), std::string::npos);
    EXPECT_EQ(rank.tuner().quietSteps(), Tuner::kForever) << "eager needs no guard";
  }
}

TEST(GroupTuner, ADecisionThatIsConfirmedStaysAndIsWatchedOn) {
  Group group({.seed = 23});
  group.train();
  const std::string plan = group.ranks[0].plan();
  group.job.drift = 1.2;  // slower than before, but still faster than eager
  ASSERT_TRUE(trainUntilSuspicious(group));
  for (Rank& rank : group.ranks) rank.tuner().recheck();
  group.train();
  for (Rank& rank : group.ranks) {
    EXPECT_EQ(rank.plan(), plan);
    EXPECT_FALSE(rank.tuner().isSuspicious());
    EXPECT_NE(rank.tuner().quietSteps(), Tuner::kForever);
  }
}

TEST(GroupTuner, AStoredDecisionIsDoubtedUntilItWasMeasured) {
  Group group({.seed = 7, .storedAt0 = "native"});
  group.train();
  ASSERT_TRUE(trainUntilSuspicious(group, 400));
  for (Rank& rank : group.ranks) rank.tuner().recheck();
  EXPECT_GT(group.train(), 10);
  for (Rank& rank : group.ranks) EXPECT_EQ(rank.plan(), "native");
}

TEST(GroupTuner, ASuspicionThatOthersDoNotShareIsPutOff) {
  Group group({.seed = 29, .drift = 2.5});
  group.train();
  ASSERT_TRUE(trainUntilSuspicious(group));
  for (Rank& rank : group.ranks) rank.tuner().postponeRecheck();
  EXPECT_FALSE(trainUntilSuspicious(group, 3000));
  EXPECT_TRUE(trainUntilSuspicious(group, 2000));
}

TEST(GroupTuner, ARecheckThatCannotGoOnLeavesWhatWasDecided) {
  for (const bool isExchangeBroken : {true, false}) {
    Group group({.seed = 31, .drift = 2.5});
    group.train();
    const std::string plan = group.ranks[0].plan();
    ASSERT_TRUE(trainUntilSuspicious(group));
    for (Rank& rank : group.ranks) rank.tuner().recheck();
    group.train(6);
    ASSERT_TRUE(group.ranks[0].tuner().isRechecking());
    if (isExchangeBroken) group.job.death = 1;
    if (!isExchangeBroken) group.ranks[1].tuner().leave("restored");
    group.train(1);
    for (Rank& rank : group.ranks) {
      EXPECT_EQ(rank.plan(), plan);
      EXPECT_EQ(rank.tuner().isOverBecause(), "");
    }
    EXPECT_FALSE(trainUntilSuspicious(group)) << "copies may differ now";
  }
}

TEST(GroupTuner, ARankThatLostWhatWasDecidedEndsARecheck) {
  Group group({.seed = 37, .drift = 2.5});
  group.train();
  const std::string plan = group.ranks[0].plan();
  ASSERT_TRUE(trainUntilSuspicious(group));
  ASSERT_TRUE(group.ranks[1].tuner().report(ArmChanged{plan, ArmState::kFailed, "raised", 0, 0}).isOk());
  for (Rank& rank : group.ranks) rank.tuner().recheck();
  std::vector<std::string> records;
  for (Rank& rank : group.ranks) records.push_back(rank.tuner().takeRecord());
  for (Rank& rank : group.ranks) ASSERT_TRUE(rank.tuner().sync(records).isOk());
  for (Rank& rank : group.ranks) rank.train();
  EXPECT_EQ(group.ranks[0].plan(), plan);
  EXPECT_EQ(group.ranks[1].plan(), kEagerArm);
}

Job drawJob(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto draw = [&] { return std::uniform_real_distribution<>(0, 1)(random); };
  const auto sometimes = [&](double value) { return draw() < 0.5 ? 0 : value * draw(); };
  Job job{.seed = seed, .numRanks = 2 + static_cast<int32_t>(3 * draw())};
  job.mode = std::array{Mode::kMax, Mode::kAuto, Mode::kFastStart, Mode::kDeterministic}[random() % 4];
  job.failure = sometimes(0.5);
  job.death = sometimes(0.02);
  job.leaving = sometimes(0.01);
  job.growth = sometimes(0.02);
  job.missedStep = sometimes(0.2);
  if (draw() < 0.2) job.storedAt0 = "inductor";
  if (draw() < 0.2) job.storedAt1 = draw() < 0.5 ? "native" : "of another version";
  return job;
}

/// GROUP_TUNER_RUNS sets a larger number of jobs than a normal test run has time for.
TEST(GroupTuner, RandomJobsEndAlikeAtAllRanks) {
  const char* wanted = std::getenv("GROUP_TUNER_RUNS");
  const int64_t numRuns = wanted != nullptr ? std::atoll(wanted) : 300;
  for (int64_t seed = 1; seed <= numRuns && !HasFailure(); ++seed) {
    Group group(drawJob(seed));
    const int64_t numSyncs = group.train();
    EXPECT_LT(numSyncs, kMostSyncs) << "seed " << seed;
  }
}

}  // namespace
}  // namespace agspeed::runtime::tune

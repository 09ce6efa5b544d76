// SPDX-License-Identifier: Apache-2.0
// Schedules with one defect each. The verifier names the defect.
#include "comm/schedule/verifier.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace agspeed::comm::schedule {
namespace {

using B = ScheduleBuilder;

std::vector<Schedule> good(const char* name = "direct", int numRanks = 4) {
  std::vector<Schedule> schedules;
  for (int rank = 0; rank < numRanks; ++rank) {
    schedules.push_back(findAlgorithm(Collective::kAllReduce, name)->make({Collective::kAllReduce, rank, numRanks, 0}));
  }
  return schedules;
}

/// Expects an error that contains `words`.
void expectWrong(const std::vector<Schedule>& schedules, const std::string& words, Order order = Order::kCanonical) {
  const auto counts = verify(Collective::kAllReduce, order, 0, schedules);
  ASSERT_FALSE(counts.hasValue()) << "expected: " << words;
  EXPECT_NE(counts.status().message().find(words), std::string::npos) << counts.status().toString();
}

Step& firstOf(Schedule& schedule, StepKind kind) {
  return *std::find_if(schedule.steps.begin(), schedule.steps.end(),
                       [&](const Step& step) { return step.kind == kind; });
}

TEST(Verifier, AcceptsWhatIsRight) {
  EXPECT_TRUE(verify(Collective::kAllReduce, Order::kCanonical, 0, good()).hasValue());
}

TEST(Verifier, FindsAContributionThatIsMissingOrTwiceThere) {
  auto schedules = good();
  firstOf(schedules[2], StepKind::kReduce).sources[1] = firstOf(schedules[2], StepKind::kReduce).sources[0];
  expectWrong(schedules, "rank 0 ends with");
  expectWrong(schedules, "rank 0 ends with", Order::kAnyOrder);
}

TEST(Verifier, FindsAnotherOrder) {
  auto schedules = good();
  std::swap(firstOf(schedules[1], StepKind::kReduce).sources[1], firstOf(schedules[1], StepKind::kReduce).sources[2]);
  expectWrong(schedules, "instead of result(");
  EXPECT_TRUE(verify(Collective::kAllReduce, Order::kAnyOrder, 0, schedules).hasValue());
  expectWrong(good("ring"), "instead of result(");
}

TEST(Verifier, FindsARace) {
  auto schedules = good();
  firstOf(schedules[1], StepKind::kReduce).dependencies.clear();
  expectWrong(schedules, "runs at the same time as step");
}

TEST(Verifier, FindsWhatWaitsForever) {
  std::vector<Schedule> schedules;
  for (int rank = 0; rank < 2; ++rank) {
    B builder({Collective::kAllReduce, rank, 2}, 1);
    const ChunkRange slot = builder.scratch(B::input(0));
    builder.receive(1 - rank, slot);
    builder.send(1 - rank, slot);  // each rank first waits for the other rank's message
    schedules.push_back(std::move(builder).build());
  }
  expectWrong(schedules, "waits forever");
}

TEST(Verifier, FindsMessagesWithoutPartnerOrOfAnotherSize) {
  auto schedules = good();
  firstOf(schedules[3], StepKind::kSend).tag = 7;
  expectWrong(schedules, "sends a message that no rank receives");
  schedules = good();
  firstOf(schedules[3], StepKind::kSend).range.count = 0;
  expectWrong(schedules, "sends another size");
}

TEST(Verifier, FindsChunksThatAreReadAsIfTheyFollowedEachOther) {
  Algorithm algorithm = *findAlgorithm(Collective::kAllReduce, "hierarchical");
  EXPECT_TRUE(verify(algorithm, 4, 0, {0, 2}).hasValue());
  algorithm.memory = Memory::kChunks;
  EXPECT_NE(verify(algorithm, 4, 0, {0, 2}).status().message().find("several chunks at once"), std::string::npos);
}

TEST(Verifier, FindsAPartialResultThatIsRounded) {
  auto schedules = good("doubling");
  schedules[0].scratch[static_cast<size_t>(firstOf(schedules[0], StepKind::kReduce).range.scratch)].isWide = false;
  expectWrong(schedules, "rounds a partial result");
}

TEST(Verifier, FindsABarrierThatLetsARankThroughTooEarly) {
  std::vector<Schedule> schedules;
  for (int rank = 0; rank < 4; ++rank) {
    B builder({Collective::kBarrier, rank, 4}, 1);
    const ChunkRange token = builder.scratch(B::input(0));
    builder.copy(token, B::input(0));
    builder.send((rank + 1) % 4, token);
    builder.receive((rank + 3) % 4, builder.scratch(B::input(0)));
    schedules.push_back(std::move(builder).build());
  }
  const auto counts = verify(Collective::kBarrier, Order::kCanonical, 0, schedules);
  ASSERT_FALSE(counts.hasValue());
  EXPECT_NE(counts.status().message().find("rank 0 may leave before rank 1 has entered"), std::string::npos)
      << counts.status().toString();
}

}  // namespace
}  // namespace agspeed::comm::schedule

// SPDX-License-Identifier: Apache-2.0
#include "runtime/tune/rank_record.h"

#include <gtest/gtest.h>

#include <fstream>
#include <initializer_list>
#include <string>

namespace agspeed::runtime::tune {
namespace {

RankRecord recordOf(std::initializer_list<TunerEvent> events) {
  RankRecord record;
  for (const TunerEvent& event : events) record.add(event);
  return record;
}

/// The combined event of one kind.
template <typename Event>
Event combined(const std::vector<RankRecord>& records) {
  for (const TunerEvent& event : combineSums(records)) {
    if (const Event* found = std::get_if<Event>(&event)) return *found;
  }
  ADD_FAILURE() << "there is no " << Event::kName;
  return {};
}

TEST(RankRecord, TheTextOfARecordWithoutEvents) {
  EXPECT_EQ(RankRecord().toText(),
            R"({"adopted":"","arms":[],"capture_estimate":-1.0,"carried":true,"digest":0,"findings":"","grown":false,)"
            R"("leaving":"","load_estimate":0.0,"new_arms":[],"paused":0.0,"searches":1,"skipped":0,)"
            R"("skipped_seconds":0.0,"start_up":0.0})");
}

TEST(RankRecord, ATextHoldsAllEvents) {
  const RankRecord record =
      recordOf({Started{0.5}, Paused{0.25}, BudgetShared{3}, CaptureExpected{2}, LoadsExpected{4}, StepsSkipped{7, 0.7},
                Adopted{"native"}, Resumed{"{}"}, CaptureGrew{}, CaptureFailed{"no graph", 1},
                ArmAdded{{"mixed", 1, 2, "native"}}, ArmChanged{"native", ArmState::kRejected, "wrong", 3, 4},
                StepFinished{"eager", 0.01, "8x8", 5, true}});
  const std::string text = record.toText();
  EXPECT_EQ(text,
            R"({"adopted":"native","arms":[{"arm":"native","background":3.0,"foreground":4.0,"reason":"wrong",)"
            R"("state":"rejected"}],"capture":{"failure":"no graph","seconds":1.0},"capture_estimate":2.0,)"
            R"("carried":true,"digest":0,"findings":"{}","grown":true,"leaving":"","load_estimate":4.0,)"
            R"("new_arms":[{"compile":1.0,"for":"native","foreground":2.0,"name":"mixed"}],"paused":0.25,)"
            R"("searches":3,"skipped":7,"skipped_seconds":0.7,"start_up":0.5,"step":{"arm":"eager","disturbed":true,)"
            R"("peak":5,"seconds":0.01,"shape":"8x8"}})");
  EXPECT_EQ(RankRecord::parse(text)->toText(), text);
}

/// Returns the text of the example of rank_record_format.md.
std::string example() {
  std::ifstream file(AG_RANK_RECORD_FORMAT_MD);
  std::string line, text;
  while (std::getline(file, line) && line != "```") continue;
  while (std::getline(file, line) && line != "```") text += line.substr(line.starts_with(' ') ? 1 : 0);
  return text;
}

TEST(RankRecord, TheExampleOfThePageIsWrittenAndReadAsDescribed) {
  const RankRecord record =
      recordOf({ArmChanged{"native", ArmState::kCompiled, "", 3, 0}, StepFinished{"eager", 0.01, "8x128", 0, false}});
  EXPECT_EQ(record.toText(), example());
  EXPECT_EQ(RankRecord::parse(example())->toText(), example());
}

TEST(RankRecord, LaterEventsJoinEarlierOnes) {
  const std::vector<RankRecord> records = {
      recordOf({Paused{1}, Paused{2}, CaptureExpected{5}, CaptureExpected{3}, LoadsExpected{5}, LoadsExpected{3},
                StepsSkipped{1, 0.5}, StepsSkipped{2, 0.5}, Adopted{"native"}, Adopted{"aot"}})};
  EXPECT_EQ(combined<Paused>(records).foregroundSeconds, 3);
  EXPECT_EQ(combined<CaptureExpected>(records).foregroundSeconds, 3);
  EXPECT_EQ(combined<LoadsExpected>(records).foregroundSeconds, 5);
  EXPECT_EQ(combined<StepsSkipped>(records).count, 3);
  EXPECT_EQ(combined<StepsSkipped>(records).seconds, 1);
  EXPECT_EQ(combined<Adopted>(records).arm, "aot");
  EXPECT_EQ(recordOf({CaptureFailed{"no graph", 1}, CaptureFinished{2}}).capture->reason, "");
}

TEST(RankRecord, StepsAndChangesOfAnArmJoin) {
  const RankRecord record = recordOf({StepFinished{"eager", 1, "a", 7, false}, StepFinished{"native", 2, "b", 5, false},
                                      ArmChanged{"native", ArmState::kFailed, "raised", 1, 2},
                                      ArmChanged{"native", ArmState::kReady, "", 3, 4}});
  EXPECT_EQ(record.step->arm, "native");
  EXPECT_EQ(record.step->seconds, 3);
  EXPECT_EQ(record.step->shape, "a+b");
  EXPECT_EQ(record.step->peakBytes, 7);
  EXPECT_TRUE(record.step->disturbed) << "two arms ran";
  const ArmChanged& arm = record.arms.at("native");
  EXPECT_EQ(arm.state, ArmState::kFailed) << "a failed arm stays out";
  EXPECT_EQ(arm.reason, "raised");
  EXPECT_EQ(arm.backgroundSeconds, 4);
  EXPECT_EQ(arm.foregroundSeconds, 6);
}

TEST(RankRecord, TheHighestNumberAndTheFirstTextCount) {
  const std::vector<RankRecord> records = {
      recordOf({Started{1}, StepsSkipped{5, 0.1}}),
      recordOf({Started{3}, StepsSkipped{2, 0.4}, Adopted{"native"}, BudgetShared{2}}), recordOf({Adopted{"aot"}})};
  EXPECT_EQ(combined<Started>(records).foregroundSeconds, 3);
  EXPECT_EQ(combined<StepsSkipped>(records).count, 5);
  EXPECT_EQ(combined<StepsSkipped>(records).seconds, 0.4);
  EXPECT_EQ(combined<Adopted>(records).arm, "native");
  EXPECT_EQ(combined<BudgetShared>(records).numSearches, 2);
  EXPECT_EQ(combineSums(records).size(), 4) << "no rank has another event";
}

}  // namespace
}  // namespace agspeed::runtime::tune

// SPDX-License-Identifier: Apache-2.0
#include "comm/schedule/schedule_builder.h"

#include <gtest/gtest.h>

namespace agspeed::comm::schedule {
namespace {

using B = ScheduleBuilder;
using Indices = std::vector<uint32_t>;

TEST(ScheduleBuilder, StepsOnDifferentMemoryAreConcurrent) {
  B builder({Collective::kAllReduce, 0, 3}, 3);
  builder.send(1, B::input(1));
  builder.send(2, B::input(1));  // the input has two readers
  builder.receive(1, B::output(2));
  builder.receive(1, builder.scratch(B::input(1)), 1);
  const Schedule schedule = std::move(builder).build();
  for (const Step& step : schedule.steps) EXPECT_EQ(step.dependencies, Indices{});
}

TEST(ScheduleBuilder, WritersWaitForReadersAndTheOtherWayRound) {
  B builder({Collective::kAllReduce, 0, 2}, 2);
  const ChunkRange slot = builder.wideScratch(B::input(0));
  builder.receive(1, slot);                                  // 0
  builder.reduceFinally(B::output(0), {B::input(0), slot});  // 1: reads what 0 writes
  builder.receive(1, slot, 1);                               // 2: overwrites what 1 reads
  builder.send(1, B::output(0), 1);                          // 3: reads what 1 writes
  const Schedule schedule = std::move(builder).build();
  EXPECT_EQ(schedule.steps[1].dependencies, Indices{0});
  EXPECT_EQ(schedule.steps[2].dependencies, Indices{1});
  EXPECT_EQ(schedule.steps[3].dependencies, Indices{1});
  EXPECT_TRUE(schedule.isWide(slot));
  EXPECT_FALSE(schedule.isWide(B::output(0)));
}

TEST(ScheduleBuilder, InputAndOutputCountAsTheSameMemory) {
  B builder({Collective::kAllReduce, 0, 2}, 2);
  builder.send(1, B::input(0, 2));
  builder.receive(1, B::output(1));
  EXPECT_EQ(std::move(builder).build().steps[1].dependencies, Indices{0});
}

}  // namespace
}  // namespace agspeed::comm::schedule

// SPDX-License-Identifier: Apache-2.0
#include "comm/named/coordinator/ready_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/comm/named/requests.h"

namespace agspeed::comm::coordinator {
namespace {

using named::requestFor;
using ::testing::ElementsAre;

EntryHandle entryOf(const std::string& name, int64_t numFloats = 4, int32_t priority = 0) {
  named::Request request = requestFor(name, {numFloats});
  request.priority = priority;
  auto entry = std::make_unique<Entry>();
  entry->requests = {std::make_shared<const named::Request>(std::move(request))};
  entry->numSubmitted = 1;
  return entry;
}

std::vector<std::string> namesIn(ReadyQueue& queue) {
  std::vector<std::string> names;
  while (queue.numBytes() > 0) names.push_back(firstOf(queue.pop()->requests).name);
  return names;
}

bool isAny(const Entry&) { return true; }

TEST(ReadyQueue, TheOrderIsThePlans) {
  IdCache ids(1, 10);
  for (const char* name : {"c", "a"}) {
    ids.keep({std::make_shared<const named::Request>(requestFor(name))}, 16);
  }
  const std::pair<FusionOrder, std::vector<std::string>> kExpected[] = {
      {FusionOrder::kTime, {"a", "b", "c"}},
      {FusionOrder::kSize, {"a", "b", "c"}},
      {FusionOrder::kPriority, {"b", "c", "a"}},
      {FusionOrder::kModel, {"c", "a", "b"}},  // "b" has no id yet
  };
  for (const auto& [order, expected] : kExpected) {
    ReadyQueue queue({.order = order}), changed({});
    for (ReadyQueue* each : {&queue, &changed}) {
      each->push(entryOf("a", 4, 1), ids);
      each->push(entryOf("b", 4, 3), ids);
      each->push(entryOf("c", 4, 2), ids);
    }
    EXPECT_EQ(namesIn(queue), expected) << toString(order);
    changed.setPlan({.order = order}, ids, [](const Batch&) { return std::vector<EntryHandle>(); });
    EXPECT_EQ(namesIn(changed), expected) << toString(order);
  }
}

TEST(ReadyQueue, AnEntryWithoutBytesCountsAsOne) {
  ReadyQueue queue({});
  queue.push(entryOf("empty", 0), IdCache(1, 1));
  EXPECT_EQ(queue.numBytes(), 1u);
  queue.pop();
  EXPECT_EQ(queue.numBytes(), 0u);
}

TEST(ReadyQueue, EntriesThatDoNotFitKeepTheirOrder) {
  const IdCache ids(1, 1);
  ReadyQueue queue({});
  for (const auto& [name, numFloats] : {std::pair("a", 4), {"b", 16}, {"c", 4}, {"large", 1 << 20}, {"d", 2}}) {
    queue.push(entryOf(name, numFloats), ids);
  }
  std::vector<std::string> taken;
  for (const EntryHandle& each : queue.popFitting(40, isAny)) taken.push_back(firstOf(each->requests).name);
  EXPECT_THAT(taken, ElementsAre("a", "c", "d"));
  EXPECT_EQ(queue.numBytes(), 64u + (size_t{4} << 20));
  EXPECT_THAT(namesIn(queue), ElementsAre("b", "large"));
}

TEST(ReadyQueue, NothingIsLookedAtBehindAFullBuffer) {
  ReadyQueue queue({});
  for (const char* name : {"a", "b", "c"}) queue.push(entryOf(name), IdCache(1, 1));
  int numAsked = 0;
  EXPECT_EQ(queue.popFitting(16, [&](const Entry&) { return ++numAsked > 0; }).size(), 1u);
  EXPECT_EQ(numAsked, 1);
  EXPECT_THAT(namesIn(queue), ElementsAre("b", "c"));
}

TEST(ReadyQueue, ABatchThatANewPlanDoesNotRunAsAWholeIsSplitInItsPlace) {
  const IdCache ids(1, 10);
  ReadyQueue queue({});
  EntryHandle whole = entryOf("batch");
  whole->batch = std::make_unique<Batch>(Batch{{1, 2}, {true}, 1, 32, {}});
  queue.push(entryOf("before"), ids);
  queue.push(std::move(whole), ids);
  queue.push(entryOf("behind"), ids);
  queue.setPlan({.fusionBytes = 16}, ids, [](const Batch& batch) {
    std::vector<EntryHandle> entries;
    for (const uint32_t id : batch.ids) entries.push_back(entryOf(std::to_string(id)));
    return entries;
  });
  EXPECT_EQ(queue.numBytes(), 64u);
  EXPECT_THAT(namesIn(queue), ElementsAre("before", "1", "2", "behind"));
}

TEST(ReadyQueue, AnEntryOfAForgottenIdHasNone) {
  ReadyQueue queue({});
  EntryHandle entry = entryOf("a");
  entry->id = 3;
  queue.push(std::move(entry), IdCache(1, 1));
  queue.forgetId(3);
  EXPECT_EQ(queue.pop()->id, 0u);
}

TEST(ReadyQueue, ABufferIsHeldOnlyWhileItMayFill) {
  const io::Clock::time_point now{};
  ReadyQueue queue({.fusionBytes = 64, .order = FusionOrder::kSize});
  EXPECT_FALSE(queue.isResponseDue({}, true, now));
  queue.push(entryOf("a"), IdCache(1, 1));
  EXPECT_TRUE(queue.isResponseDue({}, false, now));
  EXPECT_FALSE(queue.isResponseDue({}, true, now));
  const io::Clock::time_point until = queue.heldUntil();
  EXPECT_GT(until, now);
  EXPECT_TRUE(queue.isResponseDue({}, true, until));
  EXPECT_EQ(queue.heldUntil(), io::Clock::time_point::max());
  EXPECT_FALSE(queue.isResponseDue({.numOther = 2}, false, now));
}

}  // namespace
}  // namespace agspeed::comm::coordinator

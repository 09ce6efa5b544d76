// SPDX-License-Identifier: Apache-2.0
#include "comm/named/coordinator/coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/comm/named/requests.h"

namespace agspeed::comm::coordinator {
namespace {

using named::requestFor;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::vector<std::string> namesOf(const named::Response& response) {
  std::vector<std::string> names;
  for (const named::Response::Item& item : response.items) names.push_back(item.agreement->request.name);
  return names;
}

TEST(Coordinator, AnOperationIsReadyWhenTheLastRankHasIt) {
  Coordinator coordinator(3, 10);
  coordinator.add(2, requestFor("a"), {});
  coordinator.add(0, requestFor("a"), {});
  EXPECT_EQ(coordinator.ready().numBytes(), 0u);
  coordinator.add(1, requestFor("a"), {});
  EXPECT_EQ(coordinator.ready().numBytes(), 16u);
  EXPECT_THAT(namesOf(coordinator.next()), ElementsAre("a"));
  EXPECT_EQ(coordinator.ready().numBytes(), 0u);
}

TEST(Coordinator, OrderIsThatInWhichOperationsBecomeReady) {
  Coordinator coordinator(2, 10, {.fusionBytes = 0});
  coordinator.add(0, requestFor("a"), {});
  coordinator.add(0, requestFor("b"), {});
  coordinator.add(1, requestFor("b"), {});
  coordinator.add(1, requestFor("a"), {});
  EXPECT_THAT(namesOf(coordinator.next()), ElementsAre("b"));
  EXPECT_THAT(namesOf(coordinator.next()), ElementsAre("a"));
}

TEST(Coordinator, AlikeOperationsAreFusedUpToTheLimit) {
  Coordinator coordinator(1, 10, {.fusionBytes = 48});
  for (const char* name : {"a", "b", "c"}) coordinator.add(0, requestFor(name), {});
  named::Request other = requestFor("max");
  other.reduction = named::NamedReduction::kMax;
  coordinator.add(0, other, {});
  coordinator.add(0, requestFor("d"), {});
  EXPECT_THAT(namesOf(coordinator.next()), ElementsAre("a", "b", "c"));
  EXPECT_THAT(namesOf(coordinator.next()), ElementsAre("max"));
  EXPECT_THAT(namesOf(coordinator.next()), ElementsAre("d"));
}

TEST(Coordinator, ByPriorityTheHighestRunsFirst) {
  Coordinator coordinator(1, 10, {.fusionBytes = 0, .order = FusionOrder::kPriority});
  for (const int priority : {1, 3, 2, 3}) {
    named::Request request =
        requestFor("p" + std::to_string(priority) + "." + std::to_string(coordinator.ready().numBytes()));
    request.priority = priority;
    coordinator.add(0, request, {});
  }
  std::vector<std::string> names;
  while (coordinator.ready().numBytes() > 0) names.push_back(namesOf(coordinator.next())[0]);
  EXPECT_THAT(names, ElementsAre("p3.16", "p3.48", "p2.32", "p1.0"));
}

TEST(Coordinator, InTheOrderOfTheModelNamesRunAsTheyDidFirst) {
  Coordinator coordinator(1, 10, {.fusionBytes = 0, .order = FusionOrder::kModel});
  for (const char* name : {"c", "b", "a"}) {
    coordinator.add(0, requestFor(name), {});
    EXPECT_THAT(namesOf(coordinator.next()), ElementsAre(name));
  }
  for (const char* name : {"new", "a", "c", "b"}) coordinator.add(0, requestFor(name), {});
  for (const char* name : {"c", "b", "a", "new"}) EXPECT_THAT(namesOf(coordinator.next()), ElementsAre(name));
}

TEST(Coordinator, APlanThatChangesHoldsForWhatIsReadyToo) {
  Coordinator coordinator(1, 10);
  for (const int priority : {1, 2}) {
    named::Request request = requestFor("p" + std::to_string(priority));
    request.priority = priority;
    coordinator.add(0, request, {});
  }
  coordinator.setPlan({.fusionBytes = 0, .order = FusionOrder::kPriority, .version = 7});
  EXPECT_EQ(coordinator.ready().plan().version, 7u);
  EXPECT_THAT(namesOf(coordinator.next()), ElementsAre("p2"));
  coordinator.add(0, requestFor("later"), {});
  coordinator.setPlan({});
  EXPECT_THAT(namesOf(coordinator.next()), ElementsAre("p1", "later"));
}

TEST(Coordinator, BySizeABufferIsHeldUntilItIsFullOrNothingElseIsAwaitedOrSomeTimeHasPassed) {
  const io::Clock::time_point start = io::Clock::now();
  Coordinator coordinator(2, 10, {.fusionBytes = 32, .order = FusionOrder::kSize});
  EXPECT_FALSE(coordinator.isResponseDue({}, start));
  const auto add = [&](const char* name, int rank) { coordinator.add(rank, requestFor(name), start); };
  add("a", 0);
  add("b", 0);
  add("a", 1);
  EXPECT_FALSE(coordinator.isResponseDue({}, start));
  EXPECT_TRUE(coordinator.isResponseDue({}, coordinator.ready().heldUntil()));
  EXPECT_FALSE(coordinator.isResponseDue({}, start));
  add("b", 1);
  EXPECT_TRUE(coordinator.isResponseDue({}, start));
  EXPECT_THAT(namesOf(coordinator.next()), ElementsAre("a", "b"));
  add("c", 0);
  add("c", 1);
  EXPECT_TRUE(coordinator.isResponseDue({}, start));
  EXPECT_FALSE(coordinator.isResponseDue({.numOther = 2}, start));  // its data has to wait for other responses
}

TEST(Coordinator, LargeTensorsRunAloneAndSeveralAtOnce) {
  constexpr int64_t kLarge = 1 << 17;  // elements, which take 512 KiB
  Coordinator coordinator(1, 10);
  for (const char* name : {"small 1", "large 1", "small 2", "large 2"}) {
    coordinator.add(0, requestFor(name, {name[0] == 'l' ? kLarge : 4}), {});
  }
  RunningResponses running{.numOther = 2};
  for (int i = 0; i < 4; ++i) running.began(requestFor("large", {kLarge}));
  EXPECT_FALSE(coordinator.isResponseDue(running, {}));  // small tensors wait for other small ones, to be fused
  EXPECT_TRUE(coordinator.isResponseDue({.numLarge = 4, .largeBytes = 2 << 20}, {}));
  EXPECT_THAT(namesOf(coordinator.next()), ElementsAre("small 1", "small 2"));
  EXPECT_TRUE(coordinator.isResponseDue(running, {}));
  EXPECT_THAT(namesOf(coordinator.next()), ElementsAre("large 1"));
  running.began(requestFor("huge", {int64_t{1} << 28}));
  EXPECT_FALSE(coordinator.isResponseDue(running, {}));
  running.ended(requestFor("huge", {int64_t{1} << 28}));
  EXPECT_TRUE(coordinator.isResponseDue(running, {}));
  EXPECT_THAT(namesOf(coordinator.next()), ElementsAre("large 2"));
}

TEST(Coordinator, AnErrorIsNotFused) {
  Coordinator coordinator(2, 10);
  coordinator.add(0, requestFor("good"), {});
  coordinator.add(0, requestFor("bad", {1}), {});
  coordinator.add(1, requestFor("good"), {});
  coordinator.add(1, requestFor("bad", {2}), {});
  EXPECT_THAT(namesOf(coordinator.next()), ElementsAre("good"));
  EXPECT_THAT(coordinator.next().error, HasSubstr("'bad'"));
}

TEST(Coordinator, ACachedNameTravelsAsANumber) {
  Coordinator coordinator(2, 10);
  for (int rank = 0; rank < 2; ++rank) coordinator.add(rank, requestFor("a"), {});
  const named::Response first = coordinator.next();
  ASSERT_TRUE(first.items[0].isFull);
  const uint32_t id = first.items[0].id;
  ASSERT_GT(id, 0u);
  for (int rank = 0; rank < 2; ++rank) ASSERT_TRUE(coordinator.addCached(rank, id, {}).isOk());
  const named::Response again = coordinator.next();
  EXPECT_FALSE(again.items[0].isFull);
  EXPECT_EQ(again.items[0].id, id);
}

TEST(Coordinator, AChangedRequestIsSentInFullUnderItsNumber) {
  Coordinator coordinator(2, 10);
  for (int rank = 0; rank < 2; ++rank) coordinator.add(rank, requestFor("a"), {});
  const uint32_t id = coordinator.next().items[0].id;
  for (int rank = 0; rank < 2; ++rank) coordinator.add(rank, requestFor("a", {7}), {});
  const named::Response changed = coordinator.next();
  EXPECT_TRUE(changed.items[0].isFull);
  EXPECT_EQ(changed.items[0].id, id);
}

TEST(Coordinator, OneRankThatChangesItsRequestIsAMismatch) {
  Coordinator coordinator(2, 10);
  for (int rank = 0; rank < 2; ++rank) coordinator.add(rank, requestFor("a"), {});
  const uint32_t id = coordinator.next().items[0].id;
  ASSERT_TRUE(coordinator.addCached(0, id, {}).isOk());
  coordinator.add(1, requestFor("a", {7}), {});
  EXPECT_THAT(coordinator.next().error, HasSubstr("rank 0 has [4], but rank 1 has [7]"));
}

TEST(Coordinator, BeyondItsCapacityNamesHaveNoNumber) {
  Coordinator coordinator(1, 1);
  coordinator.add(0, requestFor("a"), {});
  coordinator.add(0, requestFor("b"), {});
  const named::Response both = coordinator.next();
  EXPECT_EQ(both.items[0].id, 1u);
  EXPECT_EQ(both.items[1].id, 0u);
}

TEST(Coordinator, ANumberThatIsLongUnusedGoesToAnotherNameOnceAllHaveForgottenIt) {
  Coordinator coordinator(2, 1, {.fusionBytes = 0});
  const auto run = [&](const std::string& name) {
    for (int rank = 0; rank < 2; ++rank) coordinator.add(rank, requestFor(name), {});
    return coordinator.next();
  };
  ASSERT_EQ(run("old").items[0].id, 1u);
  named::Response response;
  for (int i = 0; i < 20 && response.evicted.empty(); ++i) response = run("new");
  ASSERT_THAT(response.evicted, ElementsAre(1u));
  EXPECT_EQ(response.items[0].id, 0u);
  // A rank that has not received the eviction yet may still send the id.
  ASSERT_TRUE(coordinator.addCached(0, 1, {}).isOk());
  ASSERT_TRUE(coordinator.dropId(0, 1).isOk());
  ASSERT_TRUE(coordinator.addCached(1, 1, {}).isOk());
  EXPECT_THAT(namesOf(coordinator.next()), ElementsAre("old"));
  EXPECT_EQ(run("new").items[0].id, 0u);
  ASSERT_TRUE(coordinator.dropId(1, 1).isOk());
  const named::Response given = run("new");
  EXPECT_EQ(given.items[0].id, 1u);
  EXPECT_TRUE(given.items[0].isFull);
  EXPECT_EQ(coordinator.dropId(0, 1).code(), StatusCode::kDataLoss);
}

TEST(Coordinator, WhatWasSubmittedByANumberKeepsItsNameWhenAnotherGetsTheNumber) {
  Coordinator coordinator(1, 1, {.fusionBytes = 0, .order = FusionOrder::kPriority});
  const auto run = [&](const std::string& name) {
    named::Request request = requestFor(name);
    request.priority = name == "urgent" ? 1 : 0;
    coordinator.add(0, request, {});
    return coordinator.next();
  };
  ASSERT_EQ(run("idle").items[0].id, 1u);
  ASSERT_TRUE(coordinator.addCached(0, 1, {}).isOk());  // waits until all urgent requests have run
  named::Response response;
  for (int i = 0; i < 20 && response.evicted.empty(); ++i) response = run("urgent");
  ASSERT_THAT(response.evicted, ElementsAre(1u));
  ASSERT_TRUE(coordinator.dropId(0, 1).isOk());
  ASSERT_EQ(run("urgent").items[0].id, 1u);
  EXPECT_THAT(namesOf(coordinator.next()), ElementsAre("idle"));
}

TEST(Coordinator, WhatCannotBeFusedIsNotRunByANumberThatIsEvictedMeanwhile) {
  Coordinator coordinator(1, 1);
  const auto add = [&](const std::string& name) { coordinator.add(0, requestFor(name), {}); };
  named::Request large = requestFor("large");
  large.shapes = {{1 << 20}};  // runs alone
  coordinator.add(0, large, {});
  ASSERT_EQ(coordinator.next().items[0].id, 1u);
  for (const char* name : {"a", "b"}) {
    add(name);
    ASSERT_THAT(coordinator.next().evicted, ElementsAre());
  }
  add("c");
  ASSERT_TRUE(coordinator.addCached(0, 1, {}).isOk());
  add("d");
  const named::Response fused = coordinator.next();
  ASSERT_THAT(namesOf(fused), ElementsAre("c", "d"));
  ASSERT_THAT(fused.evicted, ElementsAre(1u));
  const named::Response next = coordinator.next();
  EXPECT_THAT(namesOf(next), ElementsAre("large"));
  EXPECT_TRUE(next.items[0].isFull) << "ranks have forgotten its number";
}

TEST(Coordinator, ANumberThatWasNeverGivenIsDataLoss) {
  Coordinator coordinator(2, 10);
  EXPECT_EQ(coordinator.addCached(1, 3, {}).code(), StatusCode::kDataLoss);
}

/// A coordinator whose ranks have run these names, with the ids 1, 2, ..., with tensors of 16 bytes.
Coordinator coordinatorWith(int size, const std::vector<std::string>& names, FusionPlan plan = {}) {
  Coordinator coordinator(size, names.size(), plan);
  int priority = 0;
  for (const std::string& name : names) {
    named::Request request = requestFor(name);
    request.priority = ++priority;
    for (int rank = 0; rank < size; ++rank) coordinator.add(rank, request, {});
  }
  while (coordinator.ready().numBytes() > 0) coordinator.next();
  return coordinator;
}

std::vector<uint32_t> numbersOf(const named::Response& response) {
  std::vector<uint32_t> numbers;
  for (const named::Response::Item& item : response.items) {
    EXPECT_FALSE(item.isFull);
    numbers.push_back(item.id);
  }
  return numbers;
}

using Ids = std::vector<uint32_t>;

TEST(Coordinator, AListThatAllRanksSayRunsInItsOrder) {
  Coordinator coordinator = coordinatorWith(3, {"a", "b", "c"});
  for (const int rank : {1, 0, 2}) {
    EXPECT_EQ(coordinator.ready().numBytes(), 0u);
    ASSERT_TRUE(coordinator.addCached(rank, Ids{3, 1, 2}, {}).isOk());
    EXPECT_EQ(coordinator.isWaiting(), rank != 2);
  }
  EXPECT_EQ(coordinator.ready().numBytes(), 48u);
  EXPECT_THAT(numbersOf(coordinator.next()), ElementsAre(3u, 1u, 2u));
  EXPECT_EQ(coordinator.ready().numBytes(), 0u);
}

TEST(Coordinator, ListsThatDifferAreMatchedNameByName) {
  Coordinator coordinator = coordinatorWith(3, {"a", "b", "c"});
  ASSERT_TRUE(coordinator.addCached(0, Ids{1, 2, 3}, {}).isOk());
  ASSERT_TRUE(coordinator.addCached(1, Ids{1, 2, 3}, {}).isOk());
  ASSERT_TRUE(coordinator.addCached(2, Ids{3, 1}, {}).isOk());
  EXPECT_THAT(numbersOf(coordinator.next()), ElementsAre(3u, 1u));
  EXPECT_EQ(coordinator.ready().numBytes(), 0u);
  ASSERT_TRUE(coordinator.addCached(2, Ids{2}, {}).isOk());
  EXPECT_THAT(numbersOf(coordinator.next()), ElementsAre(2u));
  EXPECT_FALSE(coordinator.isWaiting());
}

TEST(Coordinator, OfAListTheNameThatARankCallsDifferentlyFailsAlone) {
  Coordinator coordinator = coordinatorWith(2, {"a", "b", "c"});
  ASSERT_TRUE(coordinator.addCached(0, Ids{1, 2, 3}, {}).isOk());
  coordinator.add(1, requestFor("b", {7}), {});
  EXPECT_THAT(coordinator.next().error, HasSubstr("rank 0 has [4], but rank 1 has [7], for 'b'"));
  ASSERT_TRUE(coordinator.addCached(1, Ids{1, 3}, {}).isOk());
  EXPECT_THAT(numbersOf(coordinator.next()), ElementsAre(1u, 3u));
}

TEST(Coordinator, AListIsFusedWithWhatElseIsReadyUpToTheLimit) {
  Coordinator coordinator = coordinatorWith(2, {"a", "b", "c", "d", "e"}, {.fusionBytes = 64});
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(coordinator.addCached(rank, 5, {}).isOk());
    ASSERT_TRUE(coordinator.addCached(rank, Ids{1, 2}, {}).isOk());
    ASSERT_TRUE(coordinator.addCached(rank, Ids{3, 4}, {}).isOk());
  }
  EXPECT_THAT(numbersOf(coordinator.next()), ElementsAre(5u, 1u, 2u));
  EXPECT_THAT(numbersOf(coordinator.next()), ElementsAre(3u, 4u));
}

TEST(Coordinator, AListThatIsReadyFollowsAPlanThatChanges) {
  Coordinator coordinator = coordinatorWith(2, {"a", "b", "c"});
  for (int rank = 0; rank < 2; ++rank) ASSERT_TRUE(coordinator.addCached(rank, Ids{1, 2, 3}, {}).isOk());
  coordinator.setPlan({.fusionBytes = 32, .order = FusionOrder::kPriority});
  EXPECT_THAT(numbersOf(coordinator.next()), ElementsAre(3u, 2u));
  ASSERT_TRUE(coordinator.addCached(0, Ids{3, 2}, {}).isOk());
  EXPECT_THAT(numbersOf(coordinator.next()), ElementsAre(1u));
  coordinator.setPlan({.fusionBytes = 0});
  ASSERT_TRUE(coordinator.addCached(1, Ids{3, 2}, {}).isOk());
  EXPECT_THAT(numbersOf(coordinator.next()), ElementsAre(3u));
  EXPECT_THAT(numbersOf(coordinator.next()), ElementsAre(2u));
  EXPECT_EQ(coordinator.ready().numBytes(), 0u);
}

TEST(Coordinator, AListIsCompleteOnceAllOthersHaveJoined) {
  Coordinator coordinator = coordinatorWith(3, {"a", "b"});
  ASSERT_TRUE(coordinator.addCached(0, Ids{1, 2}, {}).isOk());
  ASSERT_TRUE(coordinator.addCached(1, Ids{1, 2}, {}).isOk());
  coordinator.add(2, requestFor("", {}, named::NamedKind::kJoin), {});
  EXPECT_THAT(namesOf(coordinator.next()), ElementsAre("a", "b"));
  ASSERT_TRUE(coordinator.addCached(1, Ids{2, 1}, {}).isOk());
  EXPECT_EQ(coordinator.ready().numBytes(), 0u);
  ASSERT_TRUE(coordinator.addCached(0, Ids{2, 1}, {}).isOk());
  EXPECT_THAT(namesOf(coordinator.next()), ElementsAre("b", "a"));
}

TEST(Coordinator, NumbersOfAListThatWaitsAreNotGivenToOthers) {
  Coordinator coordinator = coordinatorWith(2, {"a", "b"});
  ASSERT_TRUE(coordinator.addCached(0, Ids{1, 2}, {}).isOk());
  for (int i = 0; i < 20; ++i) {
    for (int rank = 0; rank < 2; ++rank) coordinator.add(rank, requestFor("new"), {});
    EXPECT_THAT(coordinator.next().evicted, ElementsAre());
  }
  ASSERT_TRUE(coordinator.addCached(1, Ids{1, 2}, {}).isOk());
  EXPECT_THAT(numbersOf(coordinator.next()), ElementsAre(1u, 2u));
}

TEST(Coordinator, AListMayNotHaveANumberTwiceOrOneThatWasNeverGiven) {
  Coordinator coordinator = coordinatorWith(2, {"a", "b"});
  EXPECT_EQ(coordinator.addCached(0, Ids{1, 3}, {}).code(), StatusCode::kDataLoss);
  Coordinator other = coordinatorWith(1, {"a", "b"});
  ASSERT_TRUE(other.addCached(0, Ids{1, 1, 2}, {}).isOk());
  std::vector<uint32_t> ran;
  while (other.ready().numBytes() > 0) {
    for (const uint32_t each : numbersOf(other.next())) ran.push_back(each);
  }
  EXPECT_THAT(ran, ElementsAre(1u, 1u, 2u));
}

TEST(Coordinator, WhatIsSaidAgainBeforeItsListHasRunIsDataLoss) {
  Coordinator coordinator = coordinatorWith(2, {"a", "b"});
  for (int rank = 0; rank < 2; ++rank) ASSERT_TRUE(coordinator.addCached(rank, Ids{1, 2}, {}).isOk());
  EXPECT_FALSE(coordinator.isResponseDue({.numOther = 2}, {}));
  EXPECT_EQ(coordinator.addCached(1, 1, {}).code(), StatusCode::kDataLoss);
  EXPECT_EQ(coordinator.addCached(1, Ids{1, 2}, {}).code(), StatusCode::kDataLoss);
  coordinator.add(1, requestFor("b"), {});
  EXPECT_THAT(numbersOf(coordinator.next()), ElementsAre(1u, 2u));
  EXPECT_EQ(coordinator.ready().numBytes(), 0u);
}

TEST(Coordinator, JoinedRanksCountAsHavingSubmitted) {
  Coordinator coordinator(2, 10);
  coordinator.add(0, requestFor("a"), {});
  EXPECT_EQ(coordinator.ready().numBytes(), 0u);
  coordinator.add(1, requestFor("", {}, named::NamedKind::kJoin), {});
  EXPECT_THAT(namesOf(coordinator.next()), ElementsAre("a"));
  coordinator.add(0, requestFor("", {}, named::NamedKind::kJoin), {});
  const named::Response joined = coordinator.next();
  EXPECT_EQ(joined.kind, named::NamedKind::kJoin);
  EXPECT_EQ(joined.lastJoined, 0);
}

TEST(Coordinator, WhatCannotRunWithJoinSaysSo) {
  Coordinator coordinator(2, 10);
  coordinator.add(1, requestFor("", {}, named::NamedKind::kJoin), {});
  coordinator.add(0, requestFor("a", {4}, named::NamedKind::kAllGather), {});
  EXPECT_THAT(coordinator.next().error,
              StartsWith("ALLGATHER 'a' is not supported with Join at this time: rank 1 has joined"));
}

TEST(Coordinator, StalledOperationsNameTheMissingRanks) {
  Coordinator coordinator(3, 10);
  const io::Clock::time_point start{};
  coordinator.add(1, requestFor("old"), start);
  coordinator.add(1, requestFor("young"), start + std::chrono::seconds(5));
  const auto stalled = coordinator.stalled(start + std::chrono::seconds(1));
  ASSERT_EQ(stalled.size(), 1u);
  EXPECT_EQ(stalled[0].name, "old");
  EXPECT_THAT(stalled[0].missing, ElementsAre(0, 2));
}

TEST(Coordinator, StalledListsNameEachOperation) {
  Coordinator coordinator = coordinatorWith(3, {"b", "a"});
  const io::Clock::time_point start{};
  ASSERT_TRUE(coordinator.addCached(1, Ids{1, 2}, start).isOk());
  ASSERT_TRUE(coordinator.addCached(2, Ids{1, 2}, start + std::chrono::seconds(5)).isOk());
  const auto stalled = coordinator.stalled(start + std::chrono::seconds(1));
  ASSERT_EQ(stalled.size(), 2u);
  EXPECT_EQ(stalled[0].name, "a");
  EXPECT_EQ(stalled[1].name, "b");
  for (const auto& each : stalled) EXPECT_THAT(each.missing, ElementsAre(0));
}

struct MismatchCase {
  const char* begins;
  std::function<void(named::Request&)> change;  ///< the difference in rank 1's request
};

TEST(Coordinator, MismatchesNameRanksAndBothValues) {
  const std::vector<MismatchCase> cases = {
      {"Mismatched operations: rank 0 has allgather, but rank 1 has allreduce, for 'a'.",
       [](named::Request& request) { request.kind = named::NamedKind::kAllReduce; }},
      {"Mismatched data types: rank 0 has f32, but rank 1 has i32",
       [](named::Request& request) { request.dtype = DType::kI32; }},
      {"Mismatched allgather CPU/GPU device selection: rank 0 has CPU, but rank 1 has GPU",
       [](named::Request& request) { request.isOnDevice = true; }},
      {"Mismatched reduction operation: rank 0 has Sum, but rank 1 has Min",
       [](named::Request& request) { request.reduction = named::NamedReduction::kMin; }},
      {"Mismatched prescale and/or postscale factors: rank 0 has (1, 1), but rank 1 has (0.5, 1)",
       [](named::Request& request) { request.prescale = 0.5; }},
      {"Mismatched broadcast root ranks: rank 0 has root 0, but rank 1 has root 1",
       [](named::Request& request) { request.root = 1; }},
      {"Mismatched ALLGATHER tensor shapes: rank 0 has [4, 2], but rank 1 has [4, 3]",
       [](named::Request& request) { request.shapes = {{4, 3}}; }},
      {"Mismatched ALLGATHER tensor shapes: rank 0 has 1 tensors, but rank 1 has 2 tensors",
       [](named::Request& request) { request.shapes.push_back({1}); }},
  };
  for (const MismatchCase& each : cases) {
    Coordinator coordinator(2, 10);
    named::Request request = requestFor("a", {4, 2}, named::NamedKind::kAllGather);
    coordinator.add(0, request, {});
    each.change(request);
    coordinator.add(1, request, {});
    EXPECT_THAT(coordinator.next().error, StartsWith(each.begins));
  }
}

TEST(Coordinator, SplitsThatDoNotFitAreNamed) {
  Coordinator coordinator(2, 10);
  named::Request request = requestFor("a", {4}, named::NamedKind::kAllToAll);
  request.splits = {2, 2};
  coordinator.add(0, request, {});
  request.splits = {1, 2};
  coordinator.add(1, request, {});
  EXPECT_THAT(coordinator.next().error, HasSubstr("rank 1 calls alltoall 'a' with splits [1, 2] for 4 rows"));
}

}  // namespace
}  // namespace agspeed::comm::coordinator

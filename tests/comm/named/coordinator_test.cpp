// SPDX-License-Identifier: Apache-2.0
#include "comm/named/coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/comm/named/requests.h"

namespace agspeed::comm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr size_t kPlenty = size_t{1} << 20;

std::vector<std::string> namesOf(const Response& response) {
  std::vector<std::string> names;
  for (const Response::Item& item : response.items) names.push_back(item.agreement.request.name);
  return names;
}

TEST(Coordinator, AnOperationIsReadyWhenTheLastRankHasIt) {
  Coordinator coordinator(3, 10);
  coordinator.add(2, requestFor("a"), {});
  coordinator.add(0, requestFor("a"), {});
  EXPECT_EQ(coordinator.readyBytes(), 0u);
  coordinator.add(1, requestFor("a"), {});
  EXPECT_EQ(coordinator.readyBytes(), 16u);
  EXPECT_THAT(namesOf(coordinator.next(kPlenty)), ElementsAre("a"));
  EXPECT_EQ(coordinator.readyBytes(), 0u);
}

TEST(Coordinator, OrderIsThatInWhichOperationsBecomeReady) {
  Coordinator coordinator(2, 10);
  coordinator.add(0, requestFor("a"), {});
  coordinator.add(0, requestFor("b"), {});
  coordinator.add(1, requestFor("b"), {});
  coordinator.add(1, requestFor("a"), {});
  EXPECT_THAT(namesOf(coordinator.next(0)), ElementsAre("b"));
  EXPECT_THAT(namesOf(coordinator.next(0)), ElementsAre("a"));
}

TEST(Coordinator, AlikeOperationsAreFusedUpToTheLimit) {
  Coordinator coordinator(1, 10);
  for (const char* name : {"a", "b", "c"}) coordinator.add(0, requestFor(name), {});
  Request other = requestFor("max");
  other.reduction = NamedReduction::kMax;
  coordinator.add(0, other, {});
  coordinator.add(0, requestFor("d"), {});
  EXPECT_THAT(namesOf(coordinator.next(48)), ElementsAre("a", "b", "c"));
  EXPECT_THAT(namesOf(coordinator.next(48)), ElementsAre("max"));
  EXPECT_THAT(namesOf(coordinator.next(48)), ElementsAre("d"));
}

TEST(Coordinator, AnErrorIsNotFused) {
  Coordinator coordinator(2, 10);
  coordinator.add(0, requestFor("good"), {});
  coordinator.add(0, requestFor("bad", {1}), {});
  coordinator.add(1, requestFor("good"), {});
  coordinator.add(1, requestFor("bad", {2}), {});
  EXPECT_THAT(namesOf(coordinator.next(kPlenty)), ElementsAre("good"));
  EXPECT_THAT(coordinator.next(kPlenty).error, HasSubstr("'bad'"));
}

TEST(Coordinator, ACachedNameTravelsAsANumber) {
  Coordinator coordinator(2, 10);
  for (int rank = 0; rank < 2; ++rank) coordinator.add(rank, requestFor("a"), {});
  const Response first = coordinator.next(kPlenty);
  ASSERT_TRUE(first.items[0].isFull);
  const uint32_t id = first.items[0].cacheId;
  ASSERT_GT(id, 0u);
  for (int rank = 0; rank < 2; ++rank) ASSERT_TRUE(coordinator.addCached(rank, id, {}).isOk());
  const Response again = coordinator.next(kPlenty);
  EXPECT_FALSE(again.items[0].isFull);
  EXPECT_EQ(again.items[0].cacheId, id);
}

TEST(Coordinator, AChangedRequestIsToldInFullUnderItsNumber) {
  Coordinator coordinator(2, 10);
  for (int rank = 0; rank < 2; ++rank) coordinator.add(rank, requestFor("a"), {});
  const uint32_t id = coordinator.next(kPlenty).items[0].cacheId;
  for (int rank = 0; rank < 2; ++rank) coordinator.add(rank, requestFor("a", {7}), {});
  const Response changed = coordinator.next(kPlenty);
  EXPECT_TRUE(changed.items[0].isFull);
  EXPECT_EQ(changed.items[0].cacheId, id);
}

TEST(Coordinator, OneRankThatChangesItsRequestIsAMismatch) {
  Coordinator coordinator(2, 10);
  for (int rank = 0; rank < 2; ++rank) coordinator.add(rank, requestFor("a"), {});
  const uint32_t id = coordinator.next(kPlenty).items[0].cacheId;
  ASSERT_TRUE(coordinator.addCached(0, id, {}).isOk());
  coordinator.add(1, requestFor("a", {7}), {});
  EXPECT_THAT(coordinator.next(kPlenty).error, HasSubstr("rank 0 has [4], but rank 1 has [7]"));
}

TEST(Coordinator, BeyondItsCapacityNamesHaveNoNumber) {
  Coordinator coordinator(1, 1);
  coordinator.add(0, requestFor("a"), {});
  coordinator.add(0, requestFor("b"), {});
  const Response both = coordinator.next(kPlenty);
  EXPECT_EQ(both.items[0].cacheId, 1u);
  EXPECT_EQ(both.items[1].cacheId, 0u);
}

TEST(Coordinator, ANumberThatWasNeverGivenIsDataLoss) {
  Coordinator coordinator(2, 10);
  EXPECT_EQ(coordinator.addCached(1, 3, {}).code(), StatusCode::kDataLoss);
}

TEST(Coordinator, JoinedRanksCountAsHavingSubmitted) {
  Coordinator coordinator(2, 10);
  coordinator.add(0, requestFor("a"), {});
  EXPECT_EQ(coordinator.readyBytes(), 0u);
  coordinator.add(1, requestFor("", {}, NamedKind::kJoin), {});
  EXPECT_THAT(namesOf(coordinator.next(kPlenty)), ElementsAre("a"));
  coordinator.add(0, requestFor("", {}, NamedKind::kJoin), {});
  const Response joined = coordinator.next(kPlenty);
  EXPECT_EQ(joined.kind, NamedKind::kJoin);
  EXPECT_EQ(joined.lastJoined, 0);
}

TEST(Coordinator, WhatCannotRunWithJoinSaysSo) {
  Coordinator coordinator(2, 10);
  coordinator.add(1, requestFor("", {}, NamedKind::kJoin), {});
  coordinator.add(0, requestFor("a", {4}, NamedKind::kAllGather), {});
  EXPECT_THAT(coordinator.next(kPlenty).error,
              StartsWith("ALLGATHER 'a' is not supported with Join at this time: rank 1 has joined"));
}

TEST(Coordinator, StalledOperationsNameTheMissingRanks) {
  Coordinator coordinator(3, 10);
  const Clock::time_point start{};
  coordinator.add(1, requestFor("old"), start);
  coordinator.add(1, requestFor("young"), start + std::chrono::seconds(5));
  const auto stalled = coordinator.stalled(start + std::chrono::seconds(1));
  ASSERT_EQ(stalled.size(), 1u);
  EXPECT_EQ(stalled[0].name, "old");
  EXPECT_THAT(stalled[0].missing, ElementsAre(0, 2));
}

struct MismatchCase {
  const char* begins;
  std::function<void(Request&)> change;  ///< what rank 1 does differently
};

TEST(Coordinator, MismatchesNameRanksAndBothValues) {
  const std::vector<MismatchCase> cases = {
      {"Mismatched operations: rank 0 has allgather, but rank 1 has allreduce, for 'a'.",
       [](Request& request) { request.kind = NamedKind::kAllReduce; }},
      {"Mismatched data types: rank 0 has f32, but rank 1 has i32",
       [](Request& request) { request.dtype = DType::kI32; }},
      {"Mismatched allgather CPU/GPU device selection: rank 0 has CPU, but rank 1 has GPU",
       [](Request& request) { request.isOnDevice = true; }},
      {"Mismatched reduction operation: rank 0 has Sum, but rank 1 has Min",
       [](Request& request) { request.reduction = NamedReduction::kMin; }},
      {"Mismatched prescale and/or postscale factors: rank 0 has (1, 1), but rank 1 has (0.5, 1)",
       [](Request& request) { request.prescale = 0.5; }},
      {"Mismatched broadcast root ranks: rank 0 has root 0, but rank 1 has root 1",
       [](Request& request) { request.root = 1; }},
      {"Mismatched ALLGATHER tensor shapes: rank 0 has [4, 2], but rank 1 has [4, 3]",
       [](Request& request) { request.shapes = {{4, 3}}; }},
      {"Mismatched ALLGATHER tensor shapes: rank 0 has 1 tensors, but rank 1 has 2 tensors",
       [](Request& request) { request.shapes.push_back({1}); }},
  };
  for (const MismatchCase& each : cases) {
    Coordinator coordinator(2, 10);
    Request request = requestFor("a", {4, 2}, NamedKind::kAllGather);
    coordinator.add(0, request, {});
    each.change(request);
    coordinator.add(1, request, {});
    EXPECT_THAT(coordinator.next(kPlenty).error, StartsWith(each.begins));
  }
}

TEST(Coordinator, SplitsThatDoNotFitAreNamed) {
  Coordinator coordinator(2, 10);
  Request request = requestFor("a", {4}, NamedKind::kAllToAll);
  request.splits = {2, 2};
  coordinator.add(0, request, {});
  request.splits = {1, 2};
  coordinator.add(1, request, {});
  EXPECT_THAT(coordinator.next(kPlenty).error, HasSubstr("rank 1 calls alltoall 'a' with splits [1, 2] for 4 rows"));
}

}  // namespace
}  // namespace agspeed::comm

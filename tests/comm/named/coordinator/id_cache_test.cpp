// SPDX-License-Identifier: Apache-2.0
#include "comm/named/coordinator/id_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "tests/comm/named/requests.h"

namespace agspeed::comm::coordinator {
namespace {

using named::requestFor;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

bool isNever(uint32_t) { return false; }

Requests ofAll(const named::Request& request, int numRanks) {
  return Requests(static_cast<size_t>(numRanks), std::make_shared<const named::Request>(request));
}

uint32_t idAfterUse(IdCache& cache, const std::string& name, int numRanks = 1) {
  return cache.keep(ofAll(requestFor(name), numRanks), 16).id;
}

TEST(IdCache, ANameKeepsItsIdAndItsLastRequests) {
  IdCache cache(2, 10);
  EXPECT_EQ(cache.find("a"), 0u);
  EXPECT_EQ(cache.request(0, 1), nullptr);
  Requests requests = {std::make_shared<const named::Request>(requestFor("a")), nullptr};
  EXPECT_EQ(cache.keep(requests, 16).id, 1u);
  EXPECT_FALSE(cache.isOfAll(1));
  EXPECT_EQ(cache.request(0, 1), requests[0]);
  EXPECT_EQ(cache.request(1, 1), nullptr);
  EXPECT_EQ(idAfterUse(cache, "a", 2), 1u);
  EXPECT_TRUE(cache.isOfAll(1));
  EXPECT_EQ(cache.find("a"), 1u);
  EXPECT_EQ(cache.name(1), "a");
  EXPECT_EQ(cache.size(), 1u);
}

TEST(IdCache, AnAgreementIsSentAgainOnlyIfItChanged) {
  IdCache cache(1, 10);
  EXPECT_TRUE(cache.keep(ofAll(requestFor("a"), 1), 16).isFull);
  EXPECT_FALSE(cache.keep(ofAll(requestFor("a"), 1), 16).isFull);
  EXPECT_TRUE(cache.keep(ofAll(requestFor("a", {8}), 1), 32).isFull);
  EXPECT_EQ(cache.use(1)->request.shapes[0], (named::Dimensions{8}));
}

TEST(IdCache, ANameThatDoesNotRepeatGetsNoId) {
  IdCache cache(1, 10);
  named::Request once = requestFor("a");
  once.isCacheable = false;
  EXPECT_EQ(cache.keep(ofAll(once, 1), 16).id, 0u);
  EXPECT_EQ(cache.size(), 0u);
}

TEST(IdCache, OnlyAlikeOperationsOfAllRanksAreFused) {
  IdCache cache(2, 10);
  const uint32_t first = idAfterUse(cache, "a", 2), second = idAfterUse(cache, "b", 2);
  EXPECT_EQ(cache.fusedBytes({first, second}), 32u);
  const uint32_t broadcast = cache.keep(ofAll(requestFor("c", {4}, named::NamedKind::kBroadcast), 2), 16).id;
  EXPECT_EQ(cache.fusedBytes({first, broadcast}), std::nullopt);
  const uint32_t gather = cache.keep(ofAll(requestFor("d", {4}, named::NamedKind::kAllGather), 2), 16).id;
  EXPECT_EQ(cache.fusedBytes({gather}), std::nullopt);
  const uint32_t ofOne = cache.keep({std::make_shared<const named::Request>(requestFor("e")), nullptr}, 16).id;
  EXPECT_EQ(cache.fusedBytes({first, ofOne}), std::nullopt);
  EXPECT_EQ(cache.fusedBytes({first, 6}), std::nullopt);  // id 6 was never assigned
  EXPECT_EQ(cache.fusedBytes({0}), std::nullopt);
}

TEST(IdCache, AnIdleIdGoesToAnotherNameOnceAllRanksHaveDroppedIt) {
  IdCache cache(2, 1);
  ASSERT_EQ(idAfterUse(cache, "old", 2), 1u);
  EXPECT_THAT(cache.evict(isNever), IsEmpty());  // every name has an id
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(idAfterUse(cache, "new", 2), 0u);
    if (i < 3) {
      EXPECT_THAT(cache.evict(isNever), IsEmpty()) << "was used " << i + 1 << " operations ago";
    }
  }
  EXPECT_THAT(cache.evict([](uint32_t) { return true; }), IsEmpty());
  EXPECT_EQ(idAfterUse(cache, "new", 2), 0u);
  EXPECT_THAT(cache.evict(isNever), ElementsAre(1u));
  EXPECT_TRUE(cache.isEvicted(1));
  EXPECT_EQ(cache.find("old"), 0u);
  ASSERT_TRUE(cache.drop(0, 1).isOk());
  EXPECT_EQ(idAfterUse(cache, "new", 2), 0u);
  ASSERT_TRUE(cache.drop(1, 1).isOk());
  EXPECT_EQ(idAfterUse(cache, "new", 2), 1u);
}

TEST(IdCache, DroppingAnIdThatIsInUseIsDataLoss) {
  IdCache cache(1, 10);
  idAfterUse(cache, "a");
  for (const uint32_t id : {0u, 1u, 2u}) EXPECT_EQ(cache.drop(0, id).code(), StatusCode::kDataLoss) << id;
}

}  // namespace
}  // namespace agspeed::comm::coordinator

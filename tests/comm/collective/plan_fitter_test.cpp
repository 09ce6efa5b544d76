// SPDX-License-Identifier: Apache-2.0
#include "comm/collective/plan_fitter.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>

namespace agspeed::comm::collective {
namespace {

/// The measurements that a rank contributes.
struct Host {
  double bytesPerSecond = 1e9;
  double roundTripSeconds = 50e-6;
  uint32_t number = 0;
};

/// The fitters of all ranks of a group, which exchange data without a network.
class Fitters : public testing::Test {
 protected:
  void make(size_t numRanks, const plan::Plan& plan = {}) {
    for (size_t rank = 0; rank < numRanks; ++rank) {
      all.push_back(std::make_unique<PlanFitter>("world", static_cast<int>(rank), static_cast<int>(numRanks), plan));
    }
  }

  void exchange(const std::vector<Host>& hosts) {
    std::vector<engine::CollectiveCall> calls;
    for (size_t rank = 0; rank < all.size(); ++rank) {
      calls.push_back(all[rank]->exchange());
      all[rank]->contribute(hosts[rank].bytesPerSecond, hosts[rank].roundTripSeconds, hosts[rank].number);
    }
    for (size_t from = 0; from < all.size(); ++from) {
      for (size_t to = 0; to < all.size(); ++to) {
        const auto source = calls[from].input[0];
        if (to != from) std::memcpy(calls[to].output[from].data(), source.data(), source.size());
      }
    }
    for (auto& fitter : all) fitter->applyHostStats();
  }

  engine::CollectiveCall allReduce(size_t numBytes, DType dtype = DType::kF32) {
    bytes_.resize(std::max(bytes_.size(), numBytes));
    const auto bytes = std::span(bytes_).first(numBytes);
    return {.collective = schedule::Collective::kAllReduce, .dtype = dtype, .input = {bytes}, .output = {bytes}};
  }
  FittedChoice fit(size_t rank, const engine::CollectiveCall& call) const {
    return all[rank]->fit(call, all[rank]->choose(call));
  }

  std::vector<std::unique_ptr<PlanFitter>> all;

 private:
  std::vector<std::byte> bytes_;
};

constexpr size_t kMiB = size_t{1} << 20;

TEST_F(Fitters, BeforeAnyExchangeThePlanHolds) {
  make(4);
  const FittedChoice fitted = fit(0, allReduce(8 * kMiB));
  EXPECT_EQ(fitted.algorithm->name, "direct");
  EXPECT_EQ(fitted.localGroups, nullptr);
  EXPECT_TRUE(fitted.shares.empty());
}

TEST_F(Fitters, RanksThatShareHostsFormLocalGroupsForLongCalls) {
  make(4);
  exchange({{.number = 7}, {.number = 7}, {.number = 9}, {.number = 9}});
  for (size_t rank = 0; rank < 4; ++rank) {
    const FittedChoice fitted = fit(rank, allReduce(8 * kMiB));
    EXPECT_EQ(fitted.algorithm->name, "hierarchical");
    ASSERT_NE(fitted.localGroups, nullptr);
    EXPECT_EQ(*fitted.localGroups, (std::vector<int>{0, 2}));
  }
  EXPECT_EQ(fit(0, allReduce(1024)).localGroups, nullptr);
}

TEST_F(Fitters, EqualLocalGroupsAreOneListAcrossExchanges) {
  make(3);
  exchange({{.number = 7}, {.number = 7}, {.number = 9}});
  const std::vector<int>* const before = fit(0, allReduce(8 * kMiB)).localGroups;
  ASSERT_NE(before, nullptr);
  exchange({{.number = 7}, {.number = 9}, {.number = 9}});
  EXPECT_NE(fit(0, allReduce(8 * kMiB)).localGroups, before);
  exchange({{.number = 7}, {.number = 7}, {.number = 9}});
  EXPECT_EQ(fit(0, allReduce(8 * kMiB)).localGroups, before);
}

TEST_F(Fitters, ASlowHostOwnsASmallerChunkOnceThreeExchangesAgree) {
  make(4);
  const std::vector<Host> hosts = {{.number = 1}, {.number = 2}, {.bytesPerSecond = 0.4e9, .number = 3}, {.number = 4}};
  exchange(hosts);
  exchange(hosts);
  EXPECT_TRUE(fit(0, allReduce(8 * kMiB)).shares.empty());
  exchange(hosts);
  const std::vector<uint32_t> shares = fit(0, allReduce(8 * kMiB)).shares;
  ASSERT_EQ(shares.size(), 4u);
  EXPECT_LT(shares[2], shares[0]);
  for (size_t rank = 1; rank < 4; ++rank) EXPECT_EQ(fit(rank, allReduce(8 * kMiB)).shares, shares);
}

TEST_F(Fitters, ShortAllReducesFitAFarNetwork) {
  make(4);
  const Host far{.bytesPerSecond = 100e9, .roundTripSeconds = 50e-3};
  std::vector<Host> hosts;
  for (uint32_t i = 1; i <= 4; ++i) hosts.push_back({far.bytesPerSecond, far.roundTripSeconds, i});
  ASSERT_EQ(fit(0, allReduce(64 * 1024)).algorithm->name, "direct");
  for (int i = 0; i < 3; ++i) exchange(hosts);
  EXPECT_EQ(fit(0, allReduce(64 * 1024)).algorithm->name, "exchange");
  EXPECT_EQ(fit(0, allReduce(64 * 1024, DType::kF16)).algorithm->name, "direct") << "widened types are not predicted";
}

TEST_F(Fitters, WhatThePlanStatesIsLeftAsItIs) {
  plan::Plan plan;
  plan.rules = {{schedule::Collective::kAllReduce, SIZE_MAX, "halving", 0}};
  make(4, plan);
  for (int i = 0; i < 3; ++i) exchange({{.number = 7}, {.number = 7}, {.number = 9}, {.number = 9}});
  EXPECT_EQ(fit(0, allReduce(8 * kMiB)).algorithm->name, "halving");
}

TEST_F(Fitters, AnExchangeIsDueBeforeTheFirstLongCallOnly) {
  make(3);
  EXPECT_FALSE(all[0]->isExchangeDueBefore(allReduce(1024)));
  EXPECT_TRUE(all[0]->isExchangeDueBefore(allReduce(kMiB)));
  EXPECT_FALSE(all[0]->isExchangeDueBefore(allReduce(kMiB)));
}

TEST_F(Fitters, NoExchangeIsDueWhereThePlanStatesShares) {
  plan::Plan plan;
  plan.shares = {1, 2, 3};
  make(3, plan);
  EXPECT_FALSE(all[0]->isExchangeDueBefore(allReduce(kMiB)));
}

}  // namespace
}  // namespace agspeed::comm::collective

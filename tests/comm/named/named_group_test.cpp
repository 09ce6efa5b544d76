// SPDX-License-Identifier: Apache-2.0
#include "comm/named/named_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <tuple>

#include "tests/comm/named/requests.h"

namespace agspeed::comm::named {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(NamedGroup, RanksMayStartInOppositeOrders) {
  NamedRanks ranks(3);
  ranks.run([](int rank, NamedGroup& group) {
    constexpr int kCount = 40;
    std::vector<std::unique_ptr<Started>> started(kCount);
    for (int i = 0; i < kCount; ++i) {
      const int at = rank == 1 ? kCount - 1 - i : i;
      const std::vector<float> values(static_cast<size_t>(at + 1), static_cast<float>(at * (rank + 1)));
      started[static_cast<size_t>(at)] = start(group, requestFor("x" + std::to_string(at), {at + 1}), {values});
    }
    for (int i = 0; i < kCount; ++i) {
      ASSERT_TRUE(started[static_cast<size_t>(i)]->wait().isOk());
      EXPECT_EQ(started[static_cast<size_t>(i)]->outputs[0], std::vector<float>(static_cast<size_t>(i + 1), i * 6.0f));
    }
  });
}

TEST(NamedGroup, AWrongCallFailsAloneAndTheNextOneWorks) {
  NamedRanks ranks(2);
  ranks.run([](int rank, NamedGroup& group) {
    const std::vector<float> values(static_cast<size_t>(2 + rank), 1);
    const Status status = start(group, requestFor("a", {2 + rank}), {values})->wait();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("rank 0 has [2], but rank 1 has [3]"));
    auto next = start(group, requestFor("a", {2}), {{1, 2}});
    ASSERT_TRUE(next->wait().isOk());
    EXPECT_EQ(next->outputs[0], (std::vector<float>{2, 4}));
  });
}

TEST(NamedGroup, RanksHearThatTheyCalledDifferentKindsOfOperations) {
  NamedRanks ranks(3);
  ranks.run([](int rank, NamedGroup& group) {
    for (const bool areKindsDifferent : {true, false, true}) {
      const NamedKind kind = areKindsDifferent && rank == 1 ? NamedKind::kAllGather : NamedKind::kAllReduce;
      const int64_t size = areKindsDifferent || rank == 0 ? 2 : 3;
      auto started = start(group, requestFor("a", {size}, kind), {std::vector<float>(static_cast<size_t>(size), 1)});
      EXPECT_FALSE(started->wait().isOk());
      EXPECT_EQ((*started->handle)->areKindsDifferent(), areKindsDifferent) << "rank " << rank;
    }
  });
}

TEST(NamedGroup, ANameThatIsUnderWayIsRefused) {
  NamedRanks ranks(2);
  auto first = start(*ranks.groups[0], requestFor("a"), {{1, 2, 3, 4}});
  const auto second = start(*ranks.groups[0], requestFor("a"), {{1, 2, 3, 4}});
  ASSERT_FALSE(second->handle.hasValue());
  EXPECT_THAT(second->handle.status().message(), HasSubstr("same name as another tensor"));
  auto other = start(*ranks.groups[1], requestFor("a"), {{1, 2, 3, 4}});
  EXPECT_TRUE(first->wait().isOk());
  EXPECT_TRUE(other->wait().isOk());
}

NamedCall inPlace(const Request& request, std::vector<float>& values) {
  NamedCall call{.request = request};
  call.inputs = call.outputs = {std::as_writable_bytes(std::span(values))};
  return call;
}

TEST(NamedGroup, PreparedOperationsRunAgainOnOtherMemory) {
  NamedRanks ranks(3);
  ranks.run([](int rank, NamedGroup& group) {
    std::vector<std::vector<float>> values(20, std::vector<float>(5));
    std::vector<NamedHandle> operations;
    for (size_t i = 0; i < values.size(); ++i) {
      operations.push_back(group.prepare(inPlace(requestFor("x" + std::to_string(i), {5}), values[i])));
    }
    for (int round = 0; round < 4; ++round) {
      const auto own = static_cast<float>(rank + round);
      std::vector<std::vector<float>> other(values.size(), std::vector<float>(5, own));
      for (size_t i = 0; i < operations.size(); ++i) {
        const auto bytes = std::as_writable_bytes(std::span(other[i]));
        operations[i]->setBuffers(0, bytes, bytes);
      }
      ASSERT_TRUE(group.startAll(operations).isOk());
      for (size_t i = 0; i < operations.size(); ++i) {
        ASSERT_TRUE(operations[i]->wait().isOk());
        EXPECT_EQ(other[i], std::vector<float>(5, static_cast<float>(3 + 3 * round)));
      }
    }
  });
}

TEST(NamedGroup, OfThoseThatStartTogetherOnlyTheOneWhoseNameIsUnderWayIsRefused) {
  NamedRanks ranks(2);
  std::vector<float> values(4, 1), others(4, 2);
  auto first = start(*ranks.groups[0], requestFor("a"), {{1, 2, 3, 4}});
  const std::vector<NamedHandle> together = {ranks.groups[0]->prepare(inPlace(requestFor("a"), values)),
                                             ranks.groups[0]->prepare(inPlace(requestFor("b"), others))};
  const Status refusal = ranks.groups[0]->startAll(together);
  ASSERT_TRUE(together[0]->isDone());
  EXPECT_THAT(together[0]->status().message(), HasSubstr("same name as another tensor"));
  EXPECT_EQ(refusal.message(), together[0]->status().message());
  auto a = start(*ranks.groups[1], requestFor("a"), {{1, 2, 3, 4}});
  auto b = start(*ranks.groups[1], requestFor("b"), {{1, 1, 1, 1}});
  EXPECT_TRUE(first->wait().isOk());
  EXPECT_TRUE(a->wait().isOk());
  EXPECT_TRUE(together[1]->wait().isOk());
  EXPECT_EQ(others, std::vector<float>(4, 3));
  EXPECT_TRUE(b->wait().isOk());
  // The name can be used again.
  ASSERT_TRUE(ranks.groups[0]->startAll(std::span(together).first(1)).isOk());
  auto again = start(*ranks.groups[1], requestFor("a"), {{1, 1, 1, 1}});
  EXPECT_TRUE(together[0]->wait().isOk());
  EXPECT_TRUE(again->wait().isOk());
  EXPECT_EQ(values, std::vector<float>(4, 2));
}

TEST(NamedGroup, AnotherOperationMayUseANameBetweenTwoRunsOfAPreparedOne) {
  NamedRanks ranks(2);
  ranks.run([](int, NamedGroup& group) {
    std::vector<float> values(4, 1);
    const NamedHandle prepared = group.prepare(inPlace(requestFor("a"), values));
    for (int round = 0; round < 3; ++round) {
      ASSERT_TRUE(group.start(prepared).isOk());
      ASSERT_TRUE(prepared->wait().isOk());
      auto other = start(group, requestFor("a", {2 + round}), {std::vector<float>(static_cast<size_t>(2 + round), 1)});
      ASSERT_TRUE(other->wait().isOk());
      EXPECT_EQ(other->outputs[0], std::vector<float>(static_cast<size_t>(2 + round), 2));
    }
    EXPECT_EQ(values, std::vector<float>(4, 8));
  });
}

TEST(NamedGroup, ARankThatLeavesEndsWhatWaitsForIt) {
  for (const int leaving : {0, 1}) {
    NamedRanks ranks(3);
    ranks.run([&](int rank, NamedGroup& group) {
      if (rank == leaving) return group.shutdown();
      const Status status = start(group, requestFor("a"), {{1, 2, 3, 4}})->wait();
      EXPECT_EQ(status.code(), StatusCode::kUnavailable);
      EXPECT_THAT(status.message(), AllOf(HasSubstr("Horovod has been shut down"),
                                          HasSubstr("Rank " + std::to_string(leaving) + " has called shutdown()")));
    });
  }
}

// Tensors of 1 MiB are sent without a copy, small ones through a fusion buffer. The operations in flight differ from
// round to round.
TEST(NamedGroup, AGroupThatIsDestroyedEndsWhatIsUnderWay) {
  for (int round = 0; round < 24; ++round) {
    NamedRanks ranks(2);
    std::vector<std::unique_ptr<Started>> leaving, staying;
    for (int i = 0; i < 12; ++i) {
      const int64_t count = i % 2 == 0 ? 1 << 18 : 16;
      const std::vector<float> ones(static_cast<size_t>(count), 1);
      const Request request = requestFor("x" + std::to_string(i), {count});
      leaving.push_back(start(*ranks.groups[0], request, {ones}));
      staying.push_back(start(*ranks.groups[1], request, {ones}));
    }
    std::thread destroying([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(100 * round));
      ranks.groups[0] = nullptr;
    });
    for (const auto& each : staying) std::ignore = each->wait();
    destroying.join();
    for (const auto& each : leaving) {
      if (each->wait().isOk()) {
        EXPECT_EQ(each->outputs[0].back(), 2) << "round " << round;
      }
    }
  }
}

TEST(NamedGroup, AJoinedRankContributesZeros) {
  NamedRanks ranks(3);
  ranks.run([](int rank, NamedGroup& group) {
    for (int i = 0; i < rank; ++i) {
      auto sum = start(group, requestFor("step" + std::to_string(i)), {{1, 2, 3, 4}});
      ASSERT_TRUE(sum->wait().isOk());
      const auto present = static_cast<float>(2 - i);
      EXPECT_EQ(sum->outputs[0], (std::vector<float>{present, 2 * present, 3 * present, 4 * present}));
    }
    auto joined = start(group, requestFor("join", {}, NamedKind::kJoin), {});
    ASSERT_TRUE(joined->wait().isOk());
    EXPECT_EQ((*joined->handle)->lastJoined(), 2);
  });
}

TEST(NamedGroup, AStalledOperationIsEndedWhereThatIsAskedFor) {
  NamedOptions options;
  options.stallWarning = std::chrono::milliseconds(50);
  options.stallShutdown = std::chrono::milliseconds(100);
  NamedRanks ranks(2, options);
  auto alone = start(*ranks.groups[1], requestFor("alone"), {{1, 2, 3, 4}});
  const Status status = alone->wait();
  EXPECT_THAT(status.message(), AllOf(HasSubstr("One or more tensors were submitted to be reduced"),
                                      HasSubstr("Missing ranks: 0: [alone]")));
}

TEST(NamedGroup, InputsMayComeAfterTheCallAndTheirFailureEndsAll) {
  NamedRanks ranks(2);
  std::barrier bothHaveTheSum(2);  // otherwise one rank might fail before the other has the sum
  ranks.run([&](int rank, NamedGroup& group) {
    std::vector<float> values = {1, 2};
    std::atomic<int> numAsked = 0;
    for (const bool comes : {true, false}) {
      if (!comes) bothHaveTheSum.arrive_and_wait();
      NamedCall call;
      call.request = requestFor(comes ? "comes" : "fails", {2});
      call.inputs = call.outputs = {std::as_writable_bytes(std::span(values))};
      if (rank == 1) {
        call.readiness = [&, comes]() -> StatusOr<bool> {
          if (!comes) return unavailable("the device has failed");
          return ++numAsked > 3;
        };
      }
      const auto handle = group.start(std::move(call));
      ASSERT_TRUE(handle.hasValue());
      const Status status = (*handle)->wait();
      EXPECT_EQ(status.isOk(), comes);
      EXPECT_THAT(status.message(), HasSubstr(comes ? "" : "the device has failed"));
    }
    EXPECT_EQ(values, (std::vector<float>{2, 4}));
    EXPECT_EQ(numAsked > 3, rank == 1);
  });
}

TEST(NamedGroup, ALostRankIsNoticedAlsoWhileTheCoordinatorHasNothingToWaitFor) {
  for (const NamedKind kind : {NamedKind::kAllReduce, NamedKind::kJoin}) {
    NamedRanks ranks(3);
    const bool isJoin = kind == NamedKind::kJoin;
    auto waits = start(*ranks.groups[1], requestFor("a", {4}, kind), {{1, 2, 3, 4}});
    const auto alsoWaits = isJoin ? start(*ranks.groups[0], requestFor("a", {4}, kind), {{1, 2, 3, 4}}) : nullptr;
    ranks.network.kill(2);
    const Status status = waits->wait();
    EXPECT_EQ(status.code(), StatusCode::kUnavailable);
    EXPECT_THAT(status.message(), HasSubstr("rank 2 is lost"));
  }
}

TEST(NamedGroup, NamesThatComeAgainAreFusedAndStayRight) {
  NamedOptions options;
  options.plan.fusionBytes = 4096;
  NamedRanks ranks(4, options);
  ranks.run([](int rank, NamedGroup& group) {
    for (int step = 0; step < 20; ++step) {
      std::vector<std::unique_ptr<Started>> started;
      for (int i = 0; i < 30; ++i) {
        const std::vector<float> values(100, static_cast<float>(rank + i + step));
        started.push_back(start(group, requestFor("gradient" + std::to_string(i), {100}), {values}));
      }
      for (int i = 0; i < 30; ++i) {
        ASSERT_TRUE(started[static_cast<size_t>(i)]->wait().isOk());
        EXPECT_EQ(started[static_cast<size_t>(i)]->outputs[0],
                  std::vector<float>(100, static_cast<float>(6 + 4 * (i + step))));
      }
    }
  });
}

TEST(NamedGroup, NamesBeyondTheCapacityOfTheCacheTakeTheNumbersOfThoseThatAreGone) {
  constexpr int kPhases = 6, kSteps = 12;
  NamedOptions options;
  options.cacheCapacity = 3;
  options.plan.fusionBytes = 64;
  NamedRanks ranks(3, options);
  ranks.run([](int rank, NamedGroup& group) {
    for (int step = 0; step < kPhases * kSteps; ++step) {
      std::vector<std::unique_ptr<Started>> started;
      for (int i = 0; i < 5; ++i) {
        const std::string name = formatText("phase{}.{}", step / kSteps, rank == 1 ? 4 - i : i);
        started.push_back(start(group, requestFor(name, {2}), {{1.0f, static_cast<float>(step)}}));
      }
      for (const auto& each : started) {
        ASSERT_TRUE(each->wait().isOk()) << "rank " << rank << ", step " << step;
        EXPECT_EQ(each->outputs[0], (std::vector<float>{3, 3.0f * static_cast<float>(step)}));
      }
    }
  });
  EXPECT_EQ(ranks.groups[1]->stats().numCachedNames, 0u);
  EXPECT_LE(ranks.groups[0]->stats().numCachedNames, 3u);
  EXPECT_GT(ranks.groups[0]->stats().numCachedNames, 0u);
}

TEST(NamedGroup, AResponseMayHaveMoreNamesThanTheCacheEvicts) {
  for (const int capacity : {1, 3}) {
    NamedOptions options;
    options.cacheCapacity = static_cast<size_t>(capacity);
    NamedRanks ranks(2, options);
    ranks.run([&](int rank, NamedGroup& group) {
      for (int step = 0; step < 4; ++step) {
        std::vector<std::unique_ptr<Started>> started;
        for (int i = 0; i < 40; ++i) {
          started.push_back(start(group, requestFor("x" + std::to_string(i), {2}), {{1.0f, static_cast<float>(i)}}));
        }
        for (int i = 0; i < 40; ++i) {
          ASSERT_TRUE(started[static_cast<size_t>(i)]->wait().isOk())
              << "capacity " << capacity << ", rank " << rank << ", step " << step;
          EXPECT_EQ(started[static_cast<size_t>(i)]->outputs[0], (std::vector<float>{2, 2.0f * static_cast<float>(i)}));
        }
      }
    });
  }
}

TEST(NamedGroup, FusionBuffersAreFourAtMost) {
  constexpr int kCount = 60, kFloats = 4000;
  for (const coordinator::FusionOrder order : {coordinator::FusionOrder::kTime, coordinator::FusionOrder::kSize,
                                               coordinator::FusionOrder::kPriority, coordinator::FusionOrder::kModel}) {
    NamedOptions options;
    options.plan = {.fusionBytes = 64 << 10, .order = order, .version = 3};
    NamedRanks ranks(2, options);
    ranks.run([](int rank, NamedGroup& group) {
      for (int step = 0; step < 3; ++step) {
        std::vector<std::unique_ptr<Started>> started;
        for (int i = 0; i < kCount; ++i) {
          Request request = requestFor("x" + std::to_string(i), {kFloats});
          request.priority = i % 7;
          started.push_back(start(group, request, {std::vector<float>(kFloats, static_cast<float>(rank + i))}));
        }
        for (int i = 0; i < kCount; ++i) {
          ASSERT_TRUE(started[static_cast<size_t>(i)]->wait().isOk());
          EXPECT_EQ(started[static_cast<size_t>(i)]->outputs[0],
                    std::vector<float>(kFloats, static_cast<float>(2 * i + 1)));
        }
      }
    });
    for (const auto& group : ranks.groups) {
      const NamedStats stats = group->stats();
      EXPECT_LE(stats.numFusionBuffers, 4);
      EXPECT_LE(stats.maxFusionBufferBytes, size_t{4} * (64 << 10));
      EXPECT_EQ(stats.numOperations, uint64_t{3 * kCount});
    }
    EXPECT_EQ(ranks.groups[0]->stats().planVersion, 3u);
  }
}

TEST(NamedGroup, PlansThatChangeWhileOperationsAreUnderWayChangeNoResult) {
  NamedRanks ranks(3);
  ranks.run([](int rank, NamedGroup& group) {
    for (uint32_t step = 0; step < 100; ++step) {
      std::vector<std::unique_ptr<Started>> started;
      for (int i = 0; i < 12; ++i) {
        started.push_back(
            start(group, requestFor("x" + std::to_string(i), {30}),
                  {std::vector<float>(30, 0.1f * static_cast<float>(i + rank) + 1e-3f * static_cast<float>(step))}));
        if (i == 6) {
          group.setPlan({.fusionBytes = size_t{200} * (step % 5),
                         .order = static_cast<coordinator::FusionOrder>(step % 4),
                         .version = step});
        }
      }
      for (int i = 0; i < 12; ++i) {
        ASSERT_TRUE(started[static_cast<size_t>(i)]->wait().isOk());
        const auto of = [&](int other) {
          return 0.1f * static_cast<float>(i + other) + 1e-3f * static_cast<float>(step);
        };
        EXPECT_EQ(started[static_cast<size_t>(i)]->outputs[0], std::vector<float>(30, (of(0) + of(1)) + of(2)));
      }
    }
  });
}

TEST(NamedGroup, GroupsEndWhileTheirEnginesGoOn) {
  NamedRanks ranks(2);
  ranks.run([&](int rank, NamedGroup& group) {
    for (uint32_t round = 0; round < 50; ++round) {
      NamedOptions options;
      options.group.id = 10 + 2 * round;
      options.messageId = 11 + 2 * round;
      auto part = NamedGroup::create(*ranks.engines[static_cast<size_t>(rank)], options).value();
      for (int i = 0; i < 3; ++i) {
        auto first = start(*part, requestFor("a"), {{1, 2, 3, 4}});
        auto second = start(*part, requestFor("b"), {{1, 2, 3, 4}});
        ASSERT_TRUE(first->wait().isOk());
        ASSERT_TRUE(second->wait().isOk());
      }
      auto both = start(group, requestFor("both"), {{1, 2, 3, 4}});
      ASSERT_TRUE(both->wait().isOk());
    }
  });
}

TEST(NamedGroup, ABurstWhoseEndDoesNotComeAgainEndsByItself) {
  NamedRanks ranks(2);
  ranks.run([](int, NamedGroup& group) {
    std::vector<std::vector<float>> values(4, std::vector<float>(2, 1));
    std::vector<NamedHandle> operations;
    for (size_t i = 0; i < values.size(); ++i) {
      operations.push_back(group.prepare(inPlace(requestFor("x" + std::to_string(i), {2}), values[i])));
    }
    const auto startFirst = [&](size_t count) {
      for (size_t i = 0; i < count; ++i) ASSERT_TRUE(group.start(operations[i]).isOk());
    };
    for (int round = 0; round < 20; ++round) {
      startFirst(4);
      for (const NamedHandle& each : operations) ASSERT_TRUE(each->wait().isOk());
    }
    startFirst(2);
    const auto until = io::Clock::now() + std::chrono::seconds(30);
    while (!(operations[0]->isDone() && operations[1]->isDone()) && io::Clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_TRUE(operations[0]->isDone());
    EXPECT_TRUE(operations[1]->isDone());
  });
}

TEST(NamedGroup, OperationsWithoutAWaitEndByThemselves) {
  NamedRanks ranks(2);
  std::vector<std::unique_ptr<Started>> started;
  for (int rank = 0; rank < 2; ++rank) {
    started.push_back(start(*ranks.groups[static_cast<size_t>(rank)], requestFor("a"), {{1, 2, 3, 4}}));
  }
  const auto until = io::Clock::now() + std::chrono::seconds(30);
  while (!((*started[0]->handle)->isDone() && (*started[1]->handle)->isDone()) && io::Clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE((*started[0]->handle)->isDone());
  EXPECT_TRUE((*started[1]->handle)->isDone());
}

}  // namespace
}  // namespace agspeed::comm::named

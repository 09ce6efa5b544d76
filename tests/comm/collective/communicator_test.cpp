// SPDX-License-Identifier: Apache-2.0
// Many operations at once, concurrent groups, messages, callbacks, and the thread that drives progress.
#include "comm/collective/communicator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <future>
#include <mutex>
#include <random>

#include "tests/comm/collective/ranks.h"

namespace agspeed::comm::collective {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

engine::CollectiveCall sumOf(std::vector<float>& values) {
  return {.collective = schedule::Collective::kAllReduce,
          .dtype = DType::kF32,
          .input = {bytesOf(values)},
          .output = {bytesOf(values)}};
}

TEST(Communicator, ManyOperationsInFlightEndWithTheirOwnResults) {
  GroupOptions options;
  options.maxInFlightBytes = 100000;  // so that some operations start only when others have ended
  options.plan.segmentBytes = 1024;
  Ranks ranks(4, options, {.eagerBytes = 256, .shuffleSeed = 3});
  std::atomic<int> numWrong = 0;
  ranks.run([&](int rank, Communicator& group) {
    std::vector<std::vector<float>> buffers;
    std::vector<engine::OperationHandle> handles;
    for (size_t i = 0; i < 60; ++i) {
      buffers.emplace_back(1 + (i * 977) % 9000);
      for (size_t k = 0; k < buffers[i].size(); ++k)
        buffers[i][k] = static_cast<float>(i + k % 64) + static_cast<float>(rank);
    }
    for (size_t i = 0; i < 60; ++i) {
      handles.push_back(group.start(sumOf(buffers[i]), {.priority = static_cast<int>(i * 7 % 5)}));
    }
    for (size_t i = 60; i-- > 0;) numWrong += !handles[i]->wait().isOk();
    for (size_t i = 0; i < 60; ++i) {
      for (size_t k = 0; k < buffers[i].size(); ++k) {
        numWrong += buffers[i][k] != static_cast<float>(4 * (i + k % 64) + 6);
      }
    }
  });
  EXPECT_EQ(numWrong, 0);
}

TEST(Communicator, OperationsEndWithoutAWait) {
  Ranks ranks(3);
  std::vector<std::vector<float>> buffers(3, std::vector<float>(100000, 1.0f));
  std::vector<engine::OperationHandle> handles;
  for (size_t rank = 0; rank < 3; ++rank) handles.push_back(ranks.groups[rank]->start(sumOf(buffers[rank])));
  const auto limit = io::Clock::now() + seconds(20);
  for (const auto& handle : handles) {
    while (!handle->isDone() && io::Clock::now() < limit) std::this_thread::sleep_for(milliseconds(1));
    ASSERT_TRUE(handle->isDone());
    EXPECT_TRUE(handle->status().isOk()) << handle->status().toString();
  }
  for (const auto& buffer : buffers) EXPECT_EQ(buffer, std::vector<float>(100000, 3.0f));
}

TEST(Communicator, SeveralThreadsWaitForDifferentOperations) {
  Ranks ranks(2);
  std::vector<std::vector<float>> buffers(2 * 16, std::vector<float>(5000, 2.0f));
  std::vector<engine::OperationHandle> handles;
  for (size_t rank = 0; rank < 2; ++rank) {
    for (size_t i = 0; i < 16; ++i) handles.push_back(ranks.groups[rank]->start(sumOf(buffers[rank * 16 + i])));
  }
  std::atomic<int> numWrong = 0;
  std::vector<std::thread> threads;
  for (const auto& handle : handles) threads.emplace_back([&] { numWrong += !handle->wait().isOk(); });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(numWrong, 0);
  for (const auto& buffer : buffers) EXPECT_EQ(buffer, std::vector<float>(5000, 4.0f));
}

TEST(Communicator, ACallbackMayWaitForCallbacksOfLaterOperations) {
  constexpr int kDepth = 5;
  std::atomic<int> numInTime = 0;
  std::array<std::vector<std::promise<void>>, 2> promises{std::vector<std::promise<void>>(kDepth),
                                                          std::vector<std::promise<void>>(kDepth)};
  Ranks ranks(2);
  ranks.run([&](int rank, Communicator& group) {
    std::vector<std::promise<void>>& isCalled = promises[static_cast<size_t>(rank)];
    std::vector<std::vector<float>> buffers(kDepth, std::vector<float>(10, 1.0f));
    std::vector<engine::OperationHandle> handles;
    for (size_t i = 0; i < kDepth; ++i) {
      handles.push_back(group.start(sumOf(buffers[i])));
      handles[i]->whenDone([&isCalled, &numInTime, i](const Status&) {
        const bool isLast = i + 1 == isCalled.size();
        const bool isInTime = isLast || isCalled[i + 1].get_future().wait_for(seconds(20)) == std::future_status::ready;
        numInTime += isInTime ? 1 : 0;
        isCalled[i].set_value();
      });
    }
    isCalled[0].get_future().wait();
  });
  EXPECT_EQ(numInTime, 2 * kDepth);
}

TEST(Communicator, AnOperationWhoseInputIsLateKeepsItsPlaceAndLetsOthersPass) {
  for (const int lateRank : {0, 2}) {
    Ranks ranks(3);
    std::atomic<int> numWrong = 0, numPassed = 0;
    ranks.run([&](int rank, Communicator& group) {
      // The late rank writes its input only after the next operation has ended.
      std::atomic<bool> isThere = rank != lateRank;
      std::vector<float> late(50000, isThere ? 1.0f : -100.0f), prompt(50000, 2.0f);
      const engine::Readiness readiness = [&isThere] { return StatusOr<bool>(isThere.load()); };
      const engine::OperationHandle first = group.start(sumOf(late), {.readiness = readiness});
      const engine::OperationHandle second = group.start(sumOf(prompt));
      numWrong += !second->wait().isOk();
      numPassed += !first->isDone();
      if (rank == lateRank) std::fill(late.begin(), late.end(), 1.0f);
      isThere = true;
      numWrong += !first->wait().isOk();
      numWrong += late != std::vector<float>(50000, 3.0f) || prompt != std::vector<float>(50000, 6.0f);
    });
    EXPECT_EQ(numWrong, 0) << "rank " << lateRank << " is late";
    EXPECT_GE(numPassed, 1) << "rank " << lateRank << " is late";
  }
}

TEST(Communicator, AMessageWhoseBytesAreLateKeepsItsPlaceAmongThoseOfItsTag) {
  Ranks ranks(2);
  std::atomic<int> numWrong = 0;
  ranks.run([&](int rank, Communicator& group) {
    std::vector<float> first(100, 1.0f), second(100, 2.0f);
    if (rank == 1) {
      numWrong +=
          !group.receive(0, 7, bytesOf(first))->wait().isOk() || !group.receive(0, 7, bytesOf(second))->wait().isOk();
      numWrong += first[0] != 10.0f || second[0] != 20.0f;
      return;
    }
    std::atomic<bool> isThere = false;
    const engine::OperationHandle late =
        group.send(1, 7, bytesOf(first), {.readiness = [&isThere] { return StatusOr<bool>(isThere.load()); }});
    std::fill(second.begin(), second.end(), 20.0f);
    numWrong += !group.send(1, 7, bytesOf(second))->wait().isOk();
    std::fill(first.begin(), first.end(), 10.0f);
    isThere = true;
    numWrong += !late->wait().isOk();
  });
  EXPECT_EQ(numWrong, 0);
}

TEST(Communicator, AnInputThatFailsEndsTheGroupWithItsReason) {
  Ranks ranks(2);
  std::atomic<int> numNamed = 0;
  ranks.run([&](int rank, Communicator& group) {
    std::vector<float> values(1000, 1.0f);
    const engine::Readiness broken = [] { return StatusOr<bool>(unavailable("device 3 is gone")); };
    const Status status = group.start(sumOf(values), {.readiness = rank == 0 ? broken : nullptr})->wait();
    numNamed += status.message().find("device 3 is gone") != std::string::npos;
  });
  EXPECT_EQ(numNamed, 2);
}

TEST(Communicator, ReceivesFromAnyRankTakeEachMessageOnceAndNameItsSource) {
  constexpr int kMessages = 20;
  for (const size_t size : {size_t{1}, size_t{20000}}) {
    Ranks ranks(4);
    std::array<std::vector<float>, 4> values;
    std::atomic<int> numWrong = 0;
    ranks.run([&](int rank, Communicator& group) {
      std::vector<float> bytes(size);
      for (int i = 0; rank != 0 && i < kMessages; ++i) {
        bytes[0] = static_cast<float>(i);
        numWrong += !group.send(0, 9, bytesOf(bytes))->wait().isOk();
      }
      for (int i = 0; rank == 0 && i < 3 * kMessages; ++i) {
        const engine::OperationHandle handle = group.receiveFromAny(9, bytesOf(bytes));
        numWrong += !handle->wait().isOk();
        values[static_cast<size_t>(handle->sourceRank())].push_back(bytes[0]);
      }
    });
    EXPECT_EQ(numWrong, 0);
    for (size_t source = 1; source < 4; ++source) {
      ASSERT_EQ(values[source].size(), kMessages);
      EXPECT_TRUE(std::is_sorted(values[source].begin(), values[source].end()));
    }
  }
}

TEST(Communicator, AReceiveFromAnyRankWithoutASendEndsAtItsDeadline) {
  Ranks ranks(2);
  std::vector<float> bytes(2);
  const Status status = ranks.groups[0]->receiveFromAny(3, bytesOf(bytes), {.timeout = milliseconds(50)})->wait();
  EXPECT_NE(status.message().find("receive from any rank (8 bytes, tag 3)"), std::string::npos) << status.toString();
  EXPECT_FALSE(ranks.groups[1]->send(INT32_MIN, 3, bytesOf(bytes))->wait().isOk());
}

TEST(Communicator, CallbacksRunOnceAndNotOnAThreadThatWaits) {
  Ranks ranks(2);
  std::atomic<int> numCalls = 0, numWrong = 0;
  ranks.run([&](int, Communicator& group) {
    const auto self = std::this_thread::get_id();
    for (int i = 0; i < 50; ++i) {
      std::vector<float> values(10, 1.0f);
      const auto handle = group.start(sumOf(values));
      const auto count = [&, self](const Status& status) {
        ++numCalls;
        numWrong += !status.isOk() || std::this_thread::get_id() == self;
      };
      handle->whenDone(count);
      numWrong += !handle->wait().isOk();
      handle->whenDone(count);
    }
  });
  ranks.groups.clear();
  ranks.engines.clear();  // pending callbacks still run
  EXPECT_EQ(numCalls, 200);
  EXPECT_EQ(numWrong, 0);
}

TEST(Communicator, GroupsAreIndependentOfEachOther) {
  Ranks ranks(4);
  std::atomic<int> numWrong = 0;
  ranks.run([&](int rank, Communicator& world) {
    engine::Engine& engine = *ranks.engines[static_cast<size_t>(rank)];
    const bool isEven = rank % 2 == 0;
    // The order of the odd group's members differs from their order in the job.
    auto half = Communicator::create(engine, {.id = 1u + static_cast<uint32_t>(rank % 2),
                                              .name = isEven ? "even" : "odd",
                                              .members = isEven ? std::vector<int>{0, 2} : std::vector<int>{3, 1},
                                              .timeout = seconds(60)})
                    .value();
    numWrong += half->size() != 2 || half->rank() != (isEven ? rank / 2 : (rank == 3 ? 0 : 1));
    for (int round = 0; round < 30; ++round) {
      std::vector<float> all(300, static_cast<float>(rank)), some(500, static_cast<float>(rank));
      const auto first = rank < 2 ? world.start(sumOf(all)) : half->start(sumOf(some));
      const auto second = rank < 2 ? half->start(sumOf(some)) : world.start(sumOf(all));
      numWrong += !second->wait().isOk() || !first->wait().isOk();
      numWrong += all != std::vector<float>(300, 6.0f) || some != std::vector<float>(500, isEven ? 2.0f : 4.0f);
    }
    numWrong += !world.start({.collective = schedule::Collective::kBarrier})->wait().isOk();
  });
  EXPECT_EQ(numWrong, 0);
}

TEST(Communicator, MessagesOfATagArriveInOrderWhateverTheirSize) {
  Ranks ranks(3, {}, {.eagerBytes = 64, .shuffleSeed = 9});
  std::atomic<int> numWrong = 0;
  ranks.run([&](int rank, Communicator& group) {
    std::vector<std::vector<int>> sent, received;
    std::vector<engine::OperationHandle> handles;
    const int next = (rank + 1) % 3, previous = (rank + 2) % 3;
    for (int i = 0; i < 40; ++i) {
      const auto size = static_cast<size_t>(i * i);
      sent.emplace_back(size, rank * 1000 + i);
      received.emplace_back(size, -1);
    }
    for (size_t i = 0; i < 40; ++i) {
      handles.push_back(group.send(next, static_cast<uint32_t>(i % 3), bytesOf(sent[i])));
      handles.push_back(group.receive(previous, static_cast<uint32_t>(i % 3), bytesOf(received[i])));
    }
    for (const auto& handle : handles) numWrong += !handle->wait().isOk();
    for (int i = 0; i < 40; ++i) {
      numWrong += received[static_cast<size_t>(i)] != std::vector<int>(static_cast<size_t>(i * i), previous * 1000 + i);
    }
  });
  EXPECT_EQ(numWrong, 0);
}

TEST(Communicator, APlanMayChangeBetweenTwoOperations) {
  Ranks ranks(3);
  std::atomic<int> numWrong = 0;
  ranks.run([&](int, Communicator& group) {
    uint32_t version = 0;
    for (const char* name : {"exchange", "doubling", "halving", "direct"}) {
      plan::Plan plan = planWith(schedule::Collective::kAllReduce, name, 512);
      plan.version = ++version;
      group.setPlan(plan);
      std::vector<float> values(3000, 1.0f);
      numWrong += !group.start(sumOf(values))->wait().isOk() || values != std::vector<float>(3000, 3.0f);
    }
  });
  EXPECT_EQ(numWrong, 0);
}

TEST(Communicator, OptionsThatMakeNoSenseAreRefused) {
  messaging::LoopbackGroup network(2);
  engine::Engine engine(network.messenger(0));
  const auto expectRefused = [&](GroupOptions options, const std::string& words) {
    const auto group = Communicator::create(engine, std::move(options));
    ASSERT_FALSE(group.hasValue());
    EXPECT_NE(group.status().message().find(words), std::string::npos) << group.status().toString();
  };
  expectRefused({.members = {1}}, "rank 0 of the job is not among its members");
  expectRefused({.members = {0, 0}}, "member 0 is named twice");
  expectRefused({.members = {0, 7}}, "member 7");
  expectRefused({.timeout = seconds(0)}, "timeout must be positive");
}

}  // namespace
}  // namespace agspeed::comm::collective

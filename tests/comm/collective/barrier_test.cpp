// SPDX-License-Identifier: Apache-2.0
// Barriers wait for earlier operations and for all ranks, and for nothing else.
#include <gtest/gtest.h>

#include <atomic>
#include <random>

#include "tests/comm/collective/ranks.h"

namespace agspeed::comm::collective {
namespace {

using std::chrono::milliseconds;

constexpr size_t kElements = 3000;

engine::CollectiveCall sumOf(std::vector<float>& values) {
  return {.collective = schedule::Collective::kAllReduce,
          .dtype = DType::kF32,
          .input = {bytesOf(values)},
          .output = {bytesOf(values)}};
}

/// Is not ready the first `numLooks` times.
engine::Readiness readyAfter(int numLooks) {
  return [numLooks]() mutable { return StatusOr<bool>(numLooks-- <= 0); };
}

TEST(Barrier, EndsAfterWhatWasCalledBeforeIt) {
  for (const int lateRank : {0, 1, 2}) {
    Ranks ranks(3);
    std::atomic<int> numWrong = 0;
    ranks.run([&](int rank, Communicator& group) {
      std::vector<float> values(kElements, 1.0f);
      const engine::OperationHandle sum =
          group.start(sumOf(values), {.readiness = rank == lateRank ? readyAfter(100) : nullptr});
      numWrong += !group.start({.collective = schedule::Collective::kBarrier})->wait().isOk();
      numWrong += !sum->isDone();
      numWrong += !sum->wait().isOk() || values != std::vector<float>(kElements, 3.0f);
    });
    EXPECT_EQ(numWrong, 0) << "rank " << lateRank << " is late";
  }
}

TEST(Barrier, EndsAfterOperationsThatWaitForCreditOrHaveALaterPriority) {
  GroupOptions options;
  options.maxInFlightBytes = 20000;  // about one operation's bytes
  options.plan.segmentBytes = 1024;
  Ranks ranks(4, options, {.eagerBytes = 256, .shuffleSeed = 5});
  std::atomic<int> numWrong = 0;
  ranks.run([&](int, Communicator& group) {
    std::vector<std::vector<float>> buffers(40, std::vector<float>(kElements, 1.0f));
    std::vector<engine::OperationHandle> sums, barriers;
    for (size_t i = 0; i < buffers.size(); ++i) {
      sums.push_back(group.start(sumOf(buffers[i]), {.priority = static_cast<int>(i * 7 % 5)}));
      barriers.push_back(
          group.start({.collective = schedule::Collective::kBarrier}, {.priority = static_cast<int>(i % 3) - 4}));
    }
    for (size_t i = 0; i < buffers.size(); ++i) {
      numWrong += !barriers[i]->wait().isOk() || !sums[i]->isDone();
      numWrong += !sums[i]->wait().isOk() || buffers[i] != std::vector<float>(kElements, 4.0f);
    }
  });
  EXPECT_EQ(numWrong, 0);
}

TEST(Barrier, LetsLaterOperationsPassWhileItWaits) {
  Ranks ranks(3);
  std::atomic<int> numWrong = 0, numPassed = 0;
  ranks.run([&](int rank, Communicator& group) {
    std::atomic<bool> isThere = rank != 1;
    std::vector<float> late(kElements, 1.0f), prompt(kElements, 2.0f);
    const engine::Readiness readiness = [&isThere] { return StatusOr<bool>(isThere.load()); };
    const engine::OperationHandle first = group.start(sumOf(late), {.readiness = readiness});
    const engine::OperationHandle barrier = group.start({.collective = schedule::Collective::kBarrier});
    numWrong += !group.start(sumOf(prompt))->wait().isOk();
    numPassed += rank == 1 && !first->isDone() && !barrier->isDone();
    isThere = true;
    numWrong += !barrier->wait().isOk() || !first->isDone();
    numWrong += !first->wait().isOk();
  });
  EXPECT_EQ(numWrong, 0);
  EXPECT_EQ(numPassed, 1);
}

TEST(Barrier, DoesNotWaitForMessages) {
  Ranks ranks(2);
  std::atomic<int> numWrong = 0;
  ranks.run([&](int rank, Communicator& group) {
    std::vector<float> values(kElements);
    const engine::OperationHandle received = rank == 0 ? group.receive(1, 7, bytesOf(values)) : nullptr;
    numWrong += !group.start({.collective = schedule::Collective::kBarrier})->wait().isOk();
    numWrong += rank == 0 ? !received->wait().isOk() : !group.send(0, 7, bytesOf(values))->wait().isOk();
  });
  EXPECT_EQ(numWrong, 0);
}

TEST(Barrier, OfOneGroupDoesNotWaitForAnother) {
  Ranks ranks(2);
  std::atomic<int> numWrong = 0;
  ranks.run([&](int rank, Communicator& world) {
    engine::Engine& engine = *ranks.engines[static_cast<size_t>(rank)];
    const auto other = Communicator::create(engine, {.id = 1, .name = "other"}).value();
    std::vector<float> values(kElements, 1.0f);
    const engine::OperationHandle early = rank == 0 ? other->start(sumOf(values)) : nullptr;
    numWrong += !world.start({.collective = schedule::Collective::kBarrier})->wait().isOk();
    numWrong += rank == 0 ? !early->wait().isOk() : !other->start(sumOf(values))->wait().isOk();
  });
  EXPECT_EQ(numWrong, 0);
}

TEST(Barrier, WithOperationsOfManyGroupsInRandomOrderEnds) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  GroupOptions options;
  options.maxInFlightBytes = 20000;
  Ranks ranks(3, options, {.eagerBytes = 256, .shuffleSeed = 5});
  std::atomic<int> numWrong = 0;
  options.id = 1;
  ranks.run([&](int rank, Communicator& world) {
    const auto other = Communicator::create(*ranks.engines[static_cast<size_t>(rank)], options).value();
    std::mt19937_64 shared(seed), own(seed + 1 + static_cast<uint64_t>(rank));
    std::vector<std::vector<float>> buffers(200, std::vector<float>(kElements, 1.0f));
    std::vector<engine::OperationHandle> handles;
    for (auto& buffer : buffers) {
      Communicator& group = shared() % 2 ? world : *other;
      const bool isBarrier = shared() % 3 == 0;
      const OperationOptions how{.priority = static_cast<int>(shared() % 5),
                                 .readiness = isBarrier ? nullptr : readyAfter(static_cast<int>(own() % 20))};
      handles.push_back(group.start(isBarrier ? engine::CollectiveCall{} : sumOf(buffer), how));
    }
    for (const auto& handle : handles) numWrong += !handle->wait().isOk();
  });
  EXPECT_EQ(numWrong, 0);
}

TEST(Barrier, ThatEndsAtItsDeadlineNamesWhatItWaitedFor) {
  Ranks ranks(2);
  std::vector<float> values(kElements);
  const engine::OperationHandle sum = ranks.groups[0]->start(sumOf(values));
  const Status status = ranks.groups[0]->start({}, {.timeout = milliseconds(50)})->wait();
  EXPECT_NE(
      status.message().find("barrier(), operation 2 timed out: its timeout of 0.05 s passed before it started, after "
                            "all_reduce(3000 x f32, sum), operation 1, in segment 1 of 1, waiting for rank 1"),
      std::string::npos)
      << status.toString();
}

TEST(Barrier, OfAGroupThatFailsNamesWhatItWaitedFor) {
  Ranks ranks(2);
  std::vector<float> values(kElements);
  const engine::OperationHandle sum = ranks.groups[0]->start(sumOf(values));
  const engine::OperationHandle barrier = ranks.groups[0]->start({});
  ranks.groups[0]->abort("the test aborts");
  const Status status = barrier->wait();
  EXPECT_NE(status.message().find("before it started, after all_reduce(3000 x f32, sum), operation 1, in segment"),
            std::string::npos)
      << status.toString();
}

}  // namespace
}  // namespace agspeed::comm::collective

// SPDX-License-Identifier: Apache-2.0
// A failure ends the operation with a sentence on every rank that depends on it, and never with a hang.
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>

#include "tests/comm/collective/ranks.h"

namespace agspeed::comm::collective {
namespace {

using std::chrono::milliseconds;

/// Returns every rank's status of one operation.
std::vector<Status> statusesOf(Ranks& ranks, const std::function<engine::OperationHandle(int, Communicator&)>& start) {
  std::vector<Status> statuses(static_cast<size_t>(ranks.size()));
  ranks.run([&](int rank, Communicator& group) {
    const auto handle = start(rank, group);
    if (handle) statuses[static_cast<size_t>(rank)] = handle->wait();
  });
  return statuses;
}

void expectSentence(const Status& status, StatusCode code, const std::vector<std::string>& words) {
  EXPECT_EQ(status.code(), code) << status.toString();
  for (const auto& word : words) {
    EXPECT_NE(status.message().find(word), std::string::npos) << "lacks '" << word << "': " << status.toString();
  }
}

/// Rank 1 of three makes a different call. All three ranks must report which rank called what.
void expectMismatch(const std::function<engine::CollectiveCall(int rank, std::span<std::byte>)>& callOf,
                    const std::vector<std::string>& words) {
  Ranks ranks(3);
  std::vector<std::vector<double>> buffers(3, std::vector<double>(600));
  const auto statuses = statusesOf(ranks, [&](int rank, Communicator& group) {
    return group.start(callOf(rank, bytesOf(buffers[static_cast<size_t>(rank)])));
  });
  for (const Status& status : statuses) {
    auto expected = words;
    expected.push_back("rank 1");
    expected.push_back("the ranks' calls differ");
    expected.push_back("not usable any more");
    expectSentence(status, StatusCode::kInvalidArgument, expected);
  }
}

engine::CollectiveCall allReduce(std::span<std::byte> bytes, DType dtype = DType::kF32,
                                 reduce::ReduceOp op = reduce::ReduceOp::kSum) {
  return {
      .collective = schedule::Collective::kAllReduce, .dtype = dtype, .input = {bytes}, .output = {bytes}, .op = op};
}

TEST(Failure, RanksWithAnotherTypeAreNamed) {
  expectMismatch([](int rank, auto bytes) { return allReduce(bytes, rank == 1 ? DType::kI32 : DType::kF32); },
                 {"all_reduce(1200 x f32, sum)", "all_reduce(1200 x i32, sum)"});
}

TEST(Failure, RanksWithAnotherSizeAreNamed) {
  expectMismatch([](int rank, auto bytes) { return allReduce(bytes.first(rank == 1 ? 4000 : 400)); },
                 {"all_reduce(1000 x f32, sum)", "all_reduce(100 x f32, sum)"});
}

TEST(Failure, RanksWithAnotherOperationAreNamed) {
  expectMismatch(
      [](int rank, auto bytes) {
        return allReduce(bytes, DType::kF32, rank == 1 ? reduce::ReduceOp::kMax : reduce::ReduceOp::kSum);
      },
      {"sum)", "max)"});
}

TEST(Failure, RanksWithAnotherRootAreNamed) {
  // In a reduce, only the root waits for other ranks. So the other ranks get the error at their next operation.
  Ranks ranks(3);
  std::vector<std::vector<float>> buffers(3, std::vector<float>(600));
  const auto statuses = statusesOf(ranks, [&](int rank, Communicator& group) {
    const auto bytes = bytesOf(buffers[static_cast<size_t>(rank)]);
    const auto reduce = group.start({.collective = schedule::Collective::kReduce,
                                     .dtype = DType::kF32,
                                     .input = {bytes},
                                     .output = {bytes},
                                     .root = rank == 1 ? 2 : 0});
    return reduce->wait().isOk() ? group.start({.collective = schedule::Collective::kBarrier}) : reduce;
  });
  for (const Status& status : statuses) {
    expectSentence(status, StatusCode::kInvalidArgument, {"as operation 1", "rank 1", "root 0", "root 2"});
  }
}

TEST(Failure, RanksWithAnotherCollectiveAreNamed) {
  expectMismatch(
      [](int rank, auto bytes) {
        if (rank != 1) return allReduce(bytes);
        return engine::CollectiveCall{.collective = schedule::Collective::kBarrier};
      },
      {"all_reduce", "barrier()"});
}

TEST(Failure, AMismatchWithoutAMessageIsFoundAtTheNextOperation) {
  // With two ranks that both believe they are the root, a broadcast waits for no message.
  Ranks ranks(2);
  std::vector<std::vector<float>> buffers(2, std::vector<float>(4));
  const auto statuses = statusesOf(ranks, [&](int rank, Communicator& group) {
    const auto bytes = bytesOf(buffers[static_cast<size_t>(rank)]);
    const Status first =
        group
            .start({.collective = schedule::Collective::kBroadcast, .input = {bytes}, .output = {bytes}, .root = rank})
            ->wait();
    EXPECT_TRUE(first.isOk()) << first.toString();
    return group.start({.collective = schedule::Collective::kBarrier});
  });
  for (const Status& status : statuses) {
    expectSentence(status, StatusCode::kInvalidArgument, {"as operation 1", "root 0", "root 1", "rank 0", "rank 1"});
  }
}

TEST(Failure, AnAbsentCallEndsAtTheDeadlineAndNamesTheMissingRank) {
  GroupOptions options;
  options.name = "data parallel";
  Ranks ranks(3, options);
  std::vector<std::vector<float>> buffers(3, std::vector<float>(100));
  const auto statuses = statusesOf(ranks, [&](int rank, Communicator& group) -> engine::OperationHandle {
    if (rank == 2) return nullptr;
    return group.start(allReduce(bytesOf(buffers[static_cast<size_t>(rank)])),
                       {.timeout = milliseconds(400 + 100 * rank)});
  });
  expectSentence(statuses[0], StatusCode::kResourceExhausted,
                 {"rank 0 of group 'data parallel'", "all_reduce(100 x f32, sum), operation 1",
                  "timed out: its timeout of 0.40 s passed in segment 1 of 1, waiting for rank 2"});
  expectSentence(statuses[1], StatusCode::kUnavailable,
                 {"rank 0 gave up", "timed out: its timeout of 0.40 s passed", "waiting for rank 2"});
}

TEST(Failure, AMissingOrMismatchedRankIsNamedWhileHostStatisticsAreExchanged) {
  constexpr size_t kLarge = size_t{16} << 20;  // elements
  for (const bool isAbsent : {true, false}) {
    Ranks ranks(3);
    std::vector<std::vector<float>> buffers(3, std::vector<float>(kLarge));
    const auto statuses = statusesOf(ranks, [&](int rank, Communicator& group) -> engine::OperationHandle {
      const std::span<std::byte> bytes = bytesOf(buffers[static_cast<size_t>(rank)]);
      if (rank < 2)
        return group.start(allReduce(bytes), {.timeout = milliseconds(isAbsent ? 400 + 200 * rank : 30000)});
      if (isAbsent) return nullptr;
      return group.start(
          {.collective = schedule::Collective::kBroadcast, .dtype = DType::kF32, .output = {bytes}, .root = 0});
    });
    if (isAbsent) {
      expectSentence(statuses[0], StatusCode::kResourceExhausted,
                     {"all_reduce(16777216 x f32, sum), operation 2",
                      "before it started, while the ranks exchanged host statistics", "waiting for rank 2"});
    } else {
      expectSentence(statuses[0], StatusCode::kInvalidArgument,
                     {"as operation 1", "all_reduce(16777216 x f32, sum), before which ranks exchange host statistics",
                      "broadcast(16777216 x f32, root 0)"});
    }
  }
}

TEST(Failure, AKilledRankIsNamedByAllOthersAndLaterOperationsFailAtOnce) {
  Ranks ranks(4);
  std::vector<std::vector<float>> buffers(4, std::vector<float>(100000));
  const auto start = [&](int rank, Communicator& group) -> engine::OperationHandle {
    if (rank == 3) return nullptr;
    return group.start(allReduce(bytesOf(buffers[static_cast<size_t>(rank)])));
  };
  std::thread killer([&] {
    std::this_thread::sleep_for(milliseconds(20));
    ranks.network.kill(3);
  });
  const auto statuses = statusesOf(ranks, start);
  killer.join();
  const auto later = statusesOf(ranks, start);
  for (size_t rank = 0; rank < 3; ++rank) {
    expectSentence(statuses[rank], StatusCode::kUnavailable, {"rank 3", "operation 2", "not usable any more"});
    expectSentence(later[rank], StatusCode::kUnavailable, {"rank 3", "operation 3"});
    EXPECT_FALSE(ranks.groups[rank]->health().isOk());
  }
}

TEST(Failure, ALostRankIsNamedFirstAtRanksThatOnlyWaitForOthers) {
  Ranks ranks(4);
  std::vector<std::vector<std::byte>> inboxes(4, std::vector<std::byte>(100));
  std::thread killer([&] {
    std::this_thread::sleep_for(milliseconds(20));
    ranks.network.kill(3);
  });
  // Rank 2 waits for rank 1, rank 1 for rank 0, and rank 0 for the rank that ends.
  const auto statuses = statusesOf(ranks, [&](int rank, Communicator& group) -> engine::OperationHandle {
    if (rank == 3) return nullptr;
    return group.receive(rank == 0 ? 3 : rank - 1, 1, inboxes[static_cast<size_t>(rank)]);
  });
  killer.join();
  for (size_t rank = 0; rank < 3; ++rank) {
    expectSentence(statuses[rank], StatusCode::kUnavailable, {"rank 3 is lost", "not usable any more"});
    EXPECT_EQ(statuses[rank].message().find("rank "), statuses[rank].message().find("rank 3 is lost"));
  }
  expectSentence(statuses[2], StatusCode::kUnavailable, {"(as rank 0 says)", "receive from rank 1"});
}

TEST(Failure, ALostRankOfAPartIsNamedByBothItsNumbers) {
  messaging::LoopbackGroup network(4);
  std::vector<std::unique_ptr<engine::Engine>> engines;
  std::vector<std::unique_ptr<Communicator>> groups;
  for (int rank = 0; rank < 4; ++rank) engines.push_back(std::make_unique<engine::Engine>(network.messenger(rank)));
  for (const size_t rank : {1u, 3u}) {
    GroupOptions options;
    options.id = 5;
    options.members = {1, 3};
    groups.push_back(Communicator::create(*engines[rank], options).value());
  }
  std::vector<std::byte> inbox(10);
  const auto receive = groups[0]->receive(1, 1, inbox);
  network.kill(3);
  expectSentence(receive->wait(), StatusCode::kUnavailable, {"rank 1 (rank 3 of the job) is lost"});
}

TEST(Failure, MessagesWithoutAReceiveAreDroppedWithTheirGroup) {
  messaging::LoopbackGroup network(2);
  engine::Engine engines[2] = {engine::Engine(network.messenger(0)), engine::Engine(network.messenger(1))};
  std::unique_ptr<Communicator> groups[2];
  for (int rank = 0; rank < 2; ++rank) groups[rank] = Communicator::create(engines[rank], {.id = 5}).value();
  const auto probe = [&] {
    bool answer = false;
    engines[1].runOnDriver([&] { answer = network.messenger(1).probe(0, {11, 7, 1}); });
    return answer;
  };
  const std::vector<std::byte> bytes(10);
  ASSERT_TRUE(groups[0]->send(1, 7, bytes)->wait().isOk());
  EXPECT_TRUE(probe());
  groups[1].reset();
  EXPECT_FALSE(probe());
}

TEST(Failure, AnAbortEndsEverythingEverywhere) {
  Ranks ranks(3);
  std::vector<std::vector<float>> buffers(3, std::vector<float>(50000));
  std::vector<std::byte> inbox(16);
  const auto statuses = statusesOf(ranks, [&](int rank, Communicator& group) -> engine::OperationHandle {
    if (rank == 0) {
      const auto message = group.receive(1, 5, inbox);
      group.abort("the user asked for it");
      expectSentence(message->wait(), StatusCode::kUnavailable, {"receive from rank 1 (16 bytes, tag 5)", "aborted"});
      return message;
    }
    return group.start(allReduce(bytesOf(buffers[static_cast<size_t>(rank)])));
  });
  for (size_t rank = 1; rank < 3; ++rank) {
    expectSentence(statuses[rank], StatusCode::kUnavailable, {"rank 0 gave up: aborted: the user asked for it"});
  }
}

TEST(Failure, AMessageOfAnotherSizeFailsAtBothEnds) {
  Ranks ranks(2);
  std::vector<std::byte> out(12), in(8);
  const auto statuses = statusesOf(ranks, [&](int rank, Communicator& group) {
    if (rank == 1) return group.receive(0, 3, in);
    EXPECT_TRUE(group.send(1, 3, out)->wait().isOk());
    return group.start({.collective = schedule::Collective::kBarrier});
  });
  for (const Status& status : statuses) {
    expectSentence(status, StatusCode::kInvalidArgument, {"rank 1", "expected 8 bytes", "which sent 12"});
  }
}

TEST(Failure, ACallThatIsWrongByItselfLeavesTheGroupUsable) {
  Ranks ranks(2);
  std::vector<std::vector<float>> buffers(2, std::vector<float>(10, 1.0f));
  const auto wrong = statusesOf(ranks, [&](int rank, Communicator& group) {
    return group.start(allReduce(bytesOf(buffers[static_cast<size_t>(rank)]), DType::kF32, reduce::ReduceOp::kBitAnd));
  });
  const auto self = statusesOf(ranks, [&](int rank, Communicator& group) { return group.receive(rank, 0, {}); });
  for (const Status& status : wrong) expectSentence(status, StatusCode::kInvalidArgument, {"bitwise and", "f32"});
  for (const Status& status : self) expectSentence(status, StatusCode::kInvalidArgument, {"ranks 0 to 1"});
  const auto right = statusesOf(ranks, [&](int rank, Communicator& group) {
    return group.start(allReduce(bytesOf(buffers[static_cast<size_t>(rank)])));
  });
  for (const Status& status : right) EXPECT_TRUE(status.isOk()) << status.toString();
  EXPECT_EQ(buffers[0], std::vector<float>(10, 2.0f));
}

TEST(Failure, ARankThatLeavesDoesNotDisturbRanksThatDoNotNeedIt) {
  Ranks ranks(3);
  const auto barrier = statusesOf(ranks, [](int, Communicator& group) { return group.start({}); });
  for (const Status& status : barrier) EXPECT_TRUE(status.isOk()) << status.toString();
  ranks.network.kill(2);
  std::vector<int> sent(5000, 7), received(5000);
  const auto statuses = statusesOf(ranks, [&](int rank, Communicator& group) -> engine::OperationHandle {
    if (rank == 2) return nullptr;
    return rank == 0 ? group.send(1, 1, bytesOf(sent)) : group.receive(0, 1, bytesOf(received));
  });
  for (const Status& status : statuses) EXPECT_TRUE(status.isOk()) << status.toString();
  EXPECT_EQ(received, sent);
}

TEST(Failure, DestroyingAGroupEndsItsOperations) {
  Ranks ranks(2);
  std::vector<float> values(10);
  const auto handle = ranks.groups[0]->start(allReduce(bytesOf(values)));
  ranks.groups[0].reset();
  ASSERT_TRUE(handle->isDone());
  expectSentence(handle->status(), StatusCode::kUnavailable, {"the group was destroyed"});
}

TEST(Failure, ASlowRankIsWaitedFor) {
  Ranks ranks(3);
  std::vector<std::vector<float>> buffers(3, std::vector<float>(10, 1.0f));
  const auto statuses = statusesOf(ranks, [&](int rank, Communicator& group) {
    if (rank == 1) std::this_thread::sleep_for(milliseconds(600));  // meanwhile the others send their histories
    return group.start(allReduce(bytesOf(buffers[static_cast<size_t>(rank)])));
  });
  for (const Status& status : statuses) EXPECT_TRUE(status.isOk()) << status.toString();
}

}  // namespace
}  // namespace agspeed::comm::collective

// SPDX-License-Identifier: Apache-2.0
// Every collective with every algorithm, with random sizes, segments and ranks, against a plain loop. Reductions are
// compared bit for bit with the canonical tree, so all algorithms also agree with each other.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <deque>
#include <random>

#include "comm/reduce/reduce.h"
#include "tests/comm/collective/cases.h"

namespace agspeed::comm::collective {
namespace {

/// Returns the bytes of all messages that were coded.
uint64_t numCoded(const Ranks& ranks) {
  uint64_t sum = 0;
  for (const auto& engine : ranks.engines) sum += engine->coder().counters().numValueBytes;
  return sum;
}

/// `coded`: is set to the bytes of all messages that were coded.
void runCase(const Case& test, uint64_t* coded = nullptr) {
  GroupOptions options;
  options.plan = planWith(test.algorithm->collective, std::string(test.algorithm->name), test.segmentBytes);
  Ranks ranks(test.numRanks, options, test.loopback, test.coding);
  std::vector<std::string> problems(static_cast<size_t>(test.numRanks));
  ranks.run([&](int rank, Communicator& group) {
    if (test.algorithm->name == "hierarchical") applyHostStats(group);
    const Expectation expected = expectationOf(test, rank);
    for (int repetition = 0; repetition < 2; ++repetition) {
      Buffer input(expected.input), output(expected.output);
      std::fill(output.bytes.begin(), output.bytes.end(), std::byte{0xee});
      if (test.isInPlace && isDivisible(test.algorithm->collective) && !input.chunks.empty() &&
          !output.chunks.empty()) {
        output.bytes = input.bytes;
        input.chunks = output.chunks;
      }
      const Status status = group
                                .start({.collective = test.algorithm->collective,
                                        .dtype = test.dtype,
                                        .input = input.chunks,
                                        .output = output.chunks,
                                        .op = test.op,
                                        .root = test.root,
                                        .isContiguous = test.algorithm->memory == schedule::Memory::kContiguous})
                                ->wait();
      auto& problem = problems[static_cast<size_t>(rank)];
      if (!status.isOk()) problem = status.toString();
      if (output.bytes != Buffer(expected.output).bytes) problem += " wrong result";
    }
  });
  for (int rank = 0; rank < test.numRanks; ++rank) {
    ASSERT_EQ(problems[static_cast<size_t>(rank)], "") << "rank " << rank << ": " << test.text();
  }
  if (coded != nullptr) *coded = numCoded(ranks);
}

class EveryAlgorithm : public testing::TestWithParam<schedule::Algorithm> {
 protected:
  Case randomCase(std::mt19937_64& random, int numRanks) const {
    constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64, DType::kI64,
                                DType::kI32, DType::kI16,  DType::kI8,  DType::kU8};
    constexpr reduce::ReduceOp kOps[] = {reduce::ReduceOp::kSum, reduce::ReduceOp::kSum, reduce::ReduceOp::kAverage,
                                         reduce::ReduceOp::kMax, reduce::ReduceOp::kMin};
    Case test;
    test.algorithm = findAlgorithm(GetParam().collective, GetParam().name);
    test.numRanks = numRanks;
    test.root = static_cast<int>(random() % static_cast<uint64_t>(numRanks));
    test.dtype = kTypes[random() % std::size(kTypes)];
    test.op = kOps[random() % std::size(kOps)];
    if (test.algorithm->order == schedule::Order::kAnyOrder) test.dtype = DType::kI32;
    constexpr size_t kSizes[] = {0, 1, 33, 700, 9000};
    const size_t most = kSizes[random() % std::size(kSizes)];
    for (int i = 0; i < numRanks; ++i) test.counts.push_back(random() % (most + 1));
    test.segmentBytes = 256 << (random() % 6);
    test.isInPlace = random() % 2;
    test.loopback = {.eagerBytes = random() % 2 ? size_t{64} : size_t{1} << 20, .shuffleSeed = random()};
    // Hosts of equal sizes, or each of a random size.
    const uint64_t perHost = 1 + random() % 4;
    const bool isEqual = random() % 2;
    for (uint32_t host = 1; test.loopback.hosts.size() < static_cast<size_t>(numRanks); ++host) {
      const uint64_t size = isEqual ? perHost : 1 + random() % 5;
      for (uint64_t i = 0; i < size; ++i) test.loopback.hosts.push_back(host);
    }
    test.loopback.hosts.resize(static_cast<size_t>(numRanks));
    return test;
  }
};

TEST_P(EveryAlgorithm, GivesWhatAPlainLoopGives) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int i = 0; i < 12; ++i) {
    runCase(randomCase(random, 1 + static_cast<int>(random() % 9)));
    if (HasFatalFailure()) return;
  }
}

TEST_P(EveryAlgorithm, GivesTheSameBitsIfMessagesAreCoded) {
  if (GetParam().collective == schedule::Collective::kBarrier) GTEST_SKIP() << "a barrier sends no floats";
  if (GetParam().order == schedule::Order::kAnyOrder) GTEST_SKIP() << "its sums of floats differ from the plain loop's";
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int numRanks : {2, 5}) {
      Case test = randomCase(random, numRanks);
      test.dtype = dtype;
      test.op = reduce::ReduceOp::kSum;
      test.counts.assign(static_cast<size_t>(numRanks), 60000 + random() % 1000);
      test.segmentBytes = 65536;
      test.loopback.isRemote = true;
      test.coding = engine::WireCoding::kOn;
      uint64_t coded = 0;
      runCase(test, &coded);
      if (HasFatalFailure()) return;
      EXPECT_GT(coded, 0u) << test.text();
    }
  }
}

class EveryCanonicalReduction : public EveryAlgorithm {};

TEST_P(EveryCanonicalReduction, ReducesToTheSameBitsForTwoToSeventeenRanks) {
  std::mt19937_64 random(5);
  for (int numRanks = 2; numRanks <= 17; ++numRanks) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      Case test = randomCase(random, numRanks);
      test.dtype = dtype;
      test.op = numRanks % 2 ? reduce::ReduceOp::kSum : reduce::ReduceOp::kAverage;
      for (auto& count : test.counts) count = 100 + random() % 400;
      runCase(test);
      if (HasFatalFailure()) return;
    }
  }
}

std::vector<schedule::Algorithm> canonicalReductions() {
  std::vector<schedule::Algorithm> found;
  for (const schedule::Algorithm& algorithm : schedule::algorithms()) {
    if (isReduction(algorithm.collective) && algorithm.order == schedule::Order::kCanonical) found.push_back(algorithm);
  }
  return found;
}

std::string nameOf(const testing::TestParamInfo<schedule::Algorithm>& info) {
  std::string name = std::string(toString(info.param.collective)) + "_" + std::string(info.param.name);
  std::erase(name, '-');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Catalog, EveryAlgorithm,
                         testing::ValuesIn(schedule::algorithms().begin(), schedule::algorithms().end()), nameOf);
INSTANTIATE_TEST_SUITE_P(Catalog, EveryCanonicalReduction, testing::ValuesIn(canonicalReductions()), nameOf);

TEST(Collectives, UnequalSharesGiveTheSameBits) {
  for (const std::vector<uint32_t>& shares : {std::vector<uint32_t>{2, 1, 2, 2}, {0, 1, 0, 0}, {7, 3, 1, 900}}) {
    GroupOptions options;
    options.plan = planWith(schedule::Collective::kAllReduce, "direct", 512);
    options.plan.shares = shares;
    Ranks ranks(4, options);
    Case test{findAlgorithm(schedule::Collective::kAllReduce, "direct"),
              4,
              0,
              DType::kF32,
              reduce::ReduceOp::kSum,
              {10001},
              0,
              true,
              {}};
    std::atomic<int> numWrong = 0;
    ranks.run([&](int rank, Communicator& group) {
      const Expectation expected = expectationOf(test, rank);
      Buffer buffer(expected.input);
      const Status status = group
                                .start({.collective = schedule::Collective::kAllReduce,
                                        .dtype = DType::kF32,
                                        .input = buffer.chunks,
                                        .output = buffer.chunks})
                                ->wait();
      numWrong += !status.isOk() || buffer.bytes != expected.output[0];
    });
    EXPECT_EQ(numWrong, 0) << shares[0] << " " << shares[1];
  }
}

TEST(Collectives, RanksOfUnequalRatesAgreeOnChunksOfTheirOwn) {
  // Ranks exchange statistics before the first call and after 16 and 32 MiB. Then chunks are unequal and segments
  // shorter. Ranks may be up to 96 MiB ahead of each other. So one rank may start operations, and even the next
  // exchange, while an exchange is in flight. Another rank may start the same operations after the exchange.
  constexpr int kSize = 4, kNumCalls = 90, kNumBuffers = 24, kNumEqual = 3, kFirstUnequal = 70;
  constexpr size_t kNumElements = size_t{1} << 20;
  Ranks ranks(kSize, {}, {.shuffleSeed = 11, .bytesPerSecond = {25e6, 12.5e6, 24e6, 25e6}, .roundTripSeconds = 2e-4});
  std::array<std::atomic<uint64_t>, kSize> equal{}, unequal{};
  std::atomic<int> numWrong = 0;
  ranks.run([&](int rank, Communicator& group) {
    const auto at = static_cast<size_t>(rank);
    const auto valueAt = [](size_t i, size_t call, size_t of) {
      return static_cast<float>((i + 7 * call + of) % 1000);
    };
    std::vector<std::vector<float>> buffers(kNumBuffers, std::vector<float>(kNumElements));
    std::deque<std::pair<size_t, engine::OperationHandle>> under;
    const auto finishOldest = [&] {
      const auto [call, handle] = under.front();
      under.pop_front();
      numWrong += !handle->wait().isOk();
      const auto& buffer = buffers[call % kNumBuffers];
      for (size_t i = 0; i < kNumElements; i += 61) {
        float sum = 0;
        for (size_t other = 0; other < kSize; ++other) sum += valueAt(i, call, other);
        numWrong += buffer[i] != sum;
      }
    };
    for (size_t call = 0; call < kNumCalls; ++call) {
      while (under.size() > (7 * at + call) % kNumBuffers) finishOldest();
      if (call == kNumEqual || call == kFirstUnequal) {
        while (!under.empty()) finishOldest();
        (call == kNumEqual ? equal : unequal)[at] = ranks.network.numBytesSent(rank);
      }
      auto& buffer = buffers[call % kNumBuffers];
      for (size_t i = 0; i < kNumElements; ++i) buffer[i] = valueAt(i, call, at);
      under.emplace_back(call, group.start({.collective = schedule::Collective::kAllReduce,
                                            .dtype = DType::kF32,
                                            .input = {bytesOf(buffer)},
                                            .output = {bytesOf(buffer)}}));
    }
    while (!under.empty()) finishOldest();
    unequal[at] = ranks.network.numBytesSent(rank) - unequal[at];
  });
  EXPECT_EQ(numWrong, 0);
  const auto ratio = [](const auto& sent, size_t rank) {
    return static_cast<double>(sent[rank]) / static_cast<double>(sent[0]);
  };
  EXPECT_NEAR(ratio(equal, 1), 1, 0.01);
  EXPECT_NEAR(ratio(unequal, 1), 3.0 / 5, 0.02) << "N instead of N + 2 N / 3";
  EXPECT_NEAR(ratio(unequal, 2), 1, 0.02) << "a little slower is as fast";
}

TEST(Collectives, UnequalHostsWithSeveralRanksKeepEqualChunksAtAllRanks) {
  // Ranks make calls before, during and after each of the exchanges that show that the second host is slow.
  constexpr size_t kNumElements = size_t{1} << 20, kNumCalls = 80, kNumBuffers = 16;
  Ranks ranks(4, {}, {.shuffleSeed = 5, .bytesPerSecond = {25e6, 25e6, 12.5e6, 12.5e6}, .hosts = {1, 1, 2, 2}});
  std::atomic<int> numWrong = 0;
  ranks.run([&](int rank, Communicator& group) {
    std::vector<std::vector<float>> buffers(kNumBuffers, std::vector<float>(kNumElements));
    std::deque<std::pair<size_t, engine::OperationHandle>> under;
    const auto finishOldest = [&] {
      const auto [call, handle] = under.front();
      under.pop_front();
      const Status status = handle->wait();
      numWrong += !status.isOk();
      EXPECT_TRUE(status.isOk()) << status.toString();
      const auto& buffer = buffers[call % kNumBuffers];
      const float expected = 4 * static_cast<float>(call) + 6;
      numWrong += !std::all_of(buffer.begin(), buffer.end(), [&](float value) { return value == expected; });
    };
    for (size_t call = 0; call < kNumCalls && numWrong == 0; ++call) {
      while (under.size() > (5 * static_cast<size_t>(rank) + call) % kNumBuffers) finishOldest();
      auto& buffer = buffers[call % kNumBuffers];
      std::fill(buffer.begin(), buffer.end(), static_cast<float>(call) + static_cast<float>(rank));
      under.emplace_back(call, group.start({.collective = schedule::Collective::kAllReduce,
                                            .dtype = DType::kF32,
                                            .input = {bytesOf(buffer)},
                                            .output = {bytesOf(buffer)}}));
    }
    while (!under.empty()) finishOldest();
  });
  EXPECT_EQ(numWrong, 0);
  for (const int rank : {1, 2, 3}) {
    EXPECT_NEAR(static_cast<double>(ranks.network.numBytesSent(rank)),
                static_cast<double>(ranks.network.numBytesSent(0)), 0.01 * kNumCalls * kNumElements);
  }
}

void allReduceInPlace(Communicator& group, std::vector<float>& buffer) {
  const Status status = group
                            .start({.collective = schedule::Collective::kAllReduce,
                                    .dtype = DType::kF32,
                                    .input = {bytesOf(buffer)},
                                    .output = {bytesOf(buffer)}})
                            ->wait();
  EXPECT_TRUE(status.isOk()) << status.toString();
}

TEST(Collectives, RanksFarFromEachOtherSendMoreInFewerRounds) {
  constexpr size_t kShort = 32 * 1024, kLong = size_t{4} << 20;
  for (const double roundTripSeconds : {20e-6, 4e-3}) {
    Ranks ranks(4, {}, {.bytesPerSecond = {1e9, 1e9, 1e9, 1e9}, .roundTripSeconds = roundTripSeconds});
    std::array<std::atomic<uint64_t>, 4> before{};
    ranks.run([&](int rank, Communicator& group) {
      const auto reduce = [&](size_t bytes) {
        std::vector<float> buffer(bytes / sizeof(float), static_cast<float>(rank));
        allReduceInPlace(group, buffer);
        EXPECT_TRUE(std::all_of(buffer.begin(), buffer.end(), [](float value) { return value == 6; }));
      };
      for (int i = 0; i < 9; ++i)
        reduce(kLong);  // the ranks exchange statistics before the first and after 16 and 32 MiB
      before[static_cast<size_t>(rank)] = ranks.network.numBytesSent(rank);
      reduce(kShort);
    });
    const double sent = static_cast<double>(ranks.network.numBytesSent(2) - before[2]) / kShort;
    EXPECT_NEAR(sent, roundTripSeconds > 1e-3 ? 3 : 1.5, 0.01) << "round trips of " << roundTripSeconds << " s";
  }
}

TEST(Collectives, StatedSharesHoldWhereRanksShareHosts) {
  GroupOptions options;
  Ranks ranks(4, options, {.hosts = {1, 1, 2, 2}});
  constexpr size_t kNumElements = size_t{1} << 20;
  ranks.run([&](int, Communicator& group) {
    std::vector<float> buffer(kNumElements);
    allReduceInPlace(group, buffer);  // the group exchanges host statistics
    plan::Plan plan;
    plan.version = 1;
    plan.shares = {1, 3, 3, 3};
    group.setPlan(plan);
    allReduceInPlace(group, buffer);
  });
  // Each rank sends 1.5 buffers before the plan. With the plan, it sends 1 + 2 * share buffers (shares.h): 1.2 or 1.6.
  const auto sent = [&](int rank) {
    return static_cast<double>(ranks.network.numBytesSent(rank)) / (kNumElements * sizeof(float));
  };
  EXPECT_NEAR(sent(0), 1.5 + 1.2, 0.01);
  for (const int rank : {1, 2, 3}) EXPECT_NEAR(sent(rank), 1.5 + 1.6, 0.01);
}

TEST(Collectives, RanksOfOneHostSendWhatLeavesItOnce) {
  constexpr int kSize = 8, kPerHost = 4;
  constexpr size_t kNumElements = size_t{1} << 20, kNumBytes = kNumElements * sizeof(float);
  Ranks ranks(kSize, {}, {.shuffleSeed = 3, .hosts = {7, 7, 7, 7, 9, 9, 9, 9}});
  const auto leavingFirstHost = [&] {
    uint64_t sum = 0;
    for (int from = 0; from < kPerHost; ++from) {
      for (int to = kPerHost; to < kSize; ++to) sum += ranks.network.numBytesSent(from, to);
    }
    return static_cast<double>(sum) / kNumBytes;
  };
  std::atomic<int> numWrong = 0;
  // Ranks make calls before an earlier exchange is complete. All calls that come after the exchange must use its
  // result, even if they were made before its end.
  const auto run = [&](schedule::Collective collective, int numCalls) {
    ranks.run([&](int rank, Communicator& group) {
      const auto own = static_cast<size_t>(rank);
      std::vector<std::vector<float>> whole(static_cast<size_t>(numCalls), std::vector<float>(kNumElements));
      std::vector<std::vector<float>> part(static_cast<size_t>(numCalls), std::vector<float>(kNumElements / kSize));
      std::vector<engine::OperationHandle> handles;
      for (size_t call = 0; call < whole.size(); ++call) {
        for (size_t i = 0; i < kNumElements; ++i) whole[call][i] = static_cast<float>((i + call) % 100 + own);
        std::copy_n(whole[call].begin() + static_cast<std::ptrdiff_t>(own * part[call].size()), part[call].size(),
                    part[call].begin());
        const engine::BufferList all = {bytesOf(whole[call])}, each = engine::splitEvenly(all[0], kSize),
                                 one = {bytesOf(part[call])};
        engine::CollectiveCall request{.collective = collective, .dtype = DType::kF32, .input = all, .output = all};
        if (collective != schedule::Collective::kAllReduce)
          request.input = collective == schedule::Collective::kAllGather ? one : each;
        if (collective != schedule::Collective::kAllReduce)
          request.output = collective == schedule::Collective::kAllGather ? each : one;
        handles.push_back(group.start(std::move(request)));
      }
      for (size_t call = 0; call < whole.size(); ++call) {
        numWrong += !handles[call]->wait().isOk();
        const bool isScattered = collective == schedule::Collective::kReduceScatter;
        const std::vector<float>& result = isScattered ? part[call] : whole[call];
        for (size_t i = 0; i < result.size(); ++i) {
          const size_t at = isScattered ? own * part[call].size() + i : i;
          const auto base = static_cast<float>((at + call) % 100);
          const float gathered = base + static_cast<float>(at / part[call].size());
          numWrong += result[i] != (collective == schedule::Collective::kAllGather ? gathered : 8 * base + 28);
        }
      }
    });
  };
  run(schedule::Collective::kAllReduce, 3);
  EXPECT_EQ(numWrong, 0);
  EXPECT_NEAR(leavingFirstHost(), 3, 0.01) << "all_reduce: 2 (H - 1) / H of the buffer, 4 times as much otherwise";
  run(schedule::Collective::kAllGather, 2);
  EXPECT_EQ(numWrong, 0);
  EXPECT_NEAR(leavingFirstHost(), 3 + 2 * 0.5, 0.01) << "all_gather: what the host's ranks have";
  run(schedule::Collective::kReduceScatter, 2);
  EXPECT_EQ(numWrong, 0);
  EXPECT_NEAR(leavingFirstHost(), 4 + 2 * 0.5, 0.01) << "reduce_scatter: what the other host's ranks get";
}

TEST(Collectives, APremultipliedSumTakesEachRanksOwnFactor) {
  Ranks ranks(3);
  std::atomic<int> numWrong = 0;
  ranks.run([&](int rank, Communicator& group) {
    std::vector<float> values(1000), parts(999), part(333);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 100 + static_cast<size_t>(rank));
    std::copy(values.begin(), values.begin() + 999, parts.begin());
    const double factor = rank + 1;
    engine::CollectiveCall call{.collective = schedule::Collective::kAllReduce,
                                .dtype = DType::kF32,
                                .input = {bytesOf(values)},
                                .output = {bytesOf(values)},
                                .op = reduce::ReduceOp::kPremultipliedSum,
                                .factor = factor};
    engine::CollectiveCall scatter{.collective = schedule::Collective::kReduceScatter,
                                   .dtype = DType::kF32,
                                   .input = engine::splitEvenly(bytesOf(parts), 3),
                                   .output = {bytesOf(part)},
                                   .op = reduce::ReduceOp::kPremultipliedSum,
                                   .factor = factor};
    numWrong += !group.start(call)->wait().isOk() || !group.start(scatter)->wait().isOk();
    const auto expected = [](size_t i) { return static_cast<float>(6 * (i % 100) + 0 + 2 + 6); };
    for (size_t i = 0; i < values.size(); ++i) numWrong += values[i] != expected(i);
    for (size_t i = 0; i < part.size(); ++i) numWrong += part[i] != expected(i + 333 * static_cast<size_t>(rank));
  });
  EXPECT_EQ(numWrong, 0);
}

TEST(Collectives, TheMultipliedCopyOfAnInputIsGoneWhenItsSumEnds) {
  for (const bool isAborted : {false, true}) {
    Ranks ranks(2);
    std::atomic<int> numWrong = 0;
    ranks.run([&](int rank, Communicator& group) {
      std::vector<float> parts(200000), part(100000);
      if (isAborted && rank == 1) return;
      const engine::OperationHandle sum = group.start({.collective = schedule::Collective::kReduceScatter,
                                                       .dtype = DType::kF32,
                                                       .input = engine::splitEvenly(bytesOf(parts), 2),
                                                       .output = {bytesOf(part)},
                                                       .op = reduce::ReduceOp::kPremultipliedSum,
                                                       .factor = 0.5});
      if (isAborted) group.abort("no partner");
      numWrong += sum->wait().isOk() == isAborted;
      numWrong += dynamic_cast<const CollectiveOperation&>(*sum).scaledInput != nullptr;
    });
    EXPECT_EQ(numWrong, 0) << (isAborted ? "aborted" : "ended");
  }
}

TEST(Collectives, ABarrierHoldsAllRanksUntilTheLastOneCame) {
  Ranks ranks(5);
  std::atomic<int> numEntered = 0;
  std::atomic<int> numWrong = 0;
  ranks.run([&](int rank, Communicator& group) {
    for (int round = 1; round <= 20; ++round) {
      if (rank == round % 5) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ++numEntered;
      numWrong += !group.start({.collective = schedule::Collective::kBarrier})->wait().isOk();
      numWrong += numEntered < 5 * round;
      numWrong += !group.start({.collective = schedule::Collective::kBarrier})->wait().isOk();
    }
  });
  EXPECT_EQ(numWrong, 0);
}

}  // namespace
}  // namespace agspeed::comm::collective

// SPDX-License-Identifier: Apache-2.0
#include "comm/network/network_messenger.h"

#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/transport/faulty/faulty_rail.h"
#include "comm/transport/tcp/socket.h"
#include "tests/comm/network/network_group.h"

namespace agspeed::comm::network {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

const security::JobKey kKey(20, std::byte{7});

uint64_t freshSeed() { return std::random_device()(); }

class Modes : public testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(Modes, CarryMessagesBetweenAllRanks) {
  const auto& [mode, numRails] = GetParam();
  const uint64_t seed = freshSeed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  NetworkGroup group(3, numRails, [&, name = mode](NetworkOptions& options) {
    options.mode = name;
    if (name == "authenticated" || name == "encrypted") options.key = kKey;
  });
  EXPECT_EQ(group.exchange(60, 1 << 20, seed), "");
  for (int rank = 0; rank < group.size(); ++rank) EXPECT_EQ(group[rank].counters().numResent, 0u);
}

INSTANTIATE_TEST_SUITE_P(All, Modes,
                         testing::Combine(testing::Values("integrity", "authenticated", "encrypted", "opportunistic"),
                                          testing::Values(1, 3)),
                         [](const auto& info) {
                           return std::get<0>(info.param) + std::to_string(std::get<1>(info.param)) + "Rails";
                         });

TEST(NetworkMessenger, AllRailsCarryALargeMessage) {
  NetworkGroup group(2, 4);
  ASSERT_EQ(group.exchange(2, 16, freshSeed()), "");
  Parcel send(1, {9, 9, 9}, 32 << 20);
  Parcel receive(0, {9, 9, 9}, 32 << 20);
  group[1].receive(receive);
  group[0].send(send);
  ASSERT_TRUE(group.drive([&] { return send.numFinished > 0 && receive.numFinished > 0; }));
  // Require little of each rail, because the rails' shares differ widely on a busy machine.
  for (const multirail::MultirailCounters::Rail& rail : group[0].counters().rails) EXPECT_GT(rail.numBytes, 1u << 16);
}

TEST(NetworkMessenger, ALargeMessageWaitsForItsReceiverWithoutBlockingOthers) {
  NetworkGroup group(2, 1);
  Parcel large(1, {0, 0, 1}, 8 << 20);
  Parcel small(1, {0, 0, 2}, 100);
  Parcel receiveSmall(0, {0, 0, 2}, 100);
  group[0].send(large);
  group[0].send(small);
  group[1].receive(receiveSmall);
  ASSERT_TRUE(group.drive([&] { return receiveSmall.numFinished > 0; }));
  EXPECT_EQ(large.numFinished, 0);
  Parcel receiveLarge(0, {0, 0, 1}, 8 << 20);
  group[1].receive(receiveLarge);
  ASSERT_TRUE(group.drive([&] { return receiveLarge.numFinished > 0 && large.numFinished > 0; }));
}

TEST(NetworkMessenger, SmallMessagesBeyondTheCreditWaitForTheirReceivers) {
  NetworkGroup group(2, 1);
  constexpr size_t kBytes = 60000;
  constexpr int kMessages = 200;
  std::vector<std::unique_ptr<Parcel>> sends;
  std::vector<std::unique_ptr<Parcel>> receives;
  for (uint32_t i = 0; i < kMessages; ++i) {
    sends.push_back(std::make_unique<Parcel>(1, wire::MessageId{0, i, 0}, kBytes));
    sends.back()->storage[i] = std::byte{1};
    group[0].send(*sends.back());
  }
  group.drive([] { return false; }, milliseconds(50));
  const auto numFinished = std::count_if(sends.begin(), sends.end(), [](auto& send) { return send->numFinished > 0; });
  EXPECT_LE(numFinished * kBytes, messaging::Credits::kWindowBytes);
  for (uint32_t i = kMessages; i-- > 0;) {
    receives.push_back(std::make_unique<Parcel>(0, wire::MessageId{0, i, 0}, kBytes));
    group[1].receive(*receives.back());
  }
  ASSERT_TRUE(group.drive([&] {
    return std::all_of(receives.begin(), receives.end(), [](auto& receive) { return receive->numFinished > 0; });
  }));
  for (uint32_t i = 0; i < kMessages; ++i) EXPECT_EQ(receives[kMessages - 1 - i]->storage, sends[i]->storage);
}

TEST(NetworkMessenger, RanksWithFewerRailsUseThoseInPairs) {
  NetworkGroup group(3, 3, [](NetworkOptions& options) {
    if (options.rank > 0) options.rails.resize(static_cast<size_t>(options.rank));
  });
  ASSERT_EQ(group.exchange(60, 1 << 18, freshSeed()), "");
  group.drive([] { return false; }, milliseconds(1200));
  ASSERT_EQ(group.exchange(60, 1 << 18, freshSeed()), "");
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(group[rank].counters().numResent, 0u) << "rank " << rank;
    EXPECT_EQ(group[rank].counters().numDuplicates, 0u) << "rank " << rank;
  }
  Parcel receive(1, {5, 5, 5}, 1000);
  group[0].receive(receive);
  group.destroy(1);
  ASSERT_TRUE(group.drive([&] { return receive.numFinished > 0; }, milliseconds(3000)))
      << "known dead before a timeout";
  EXPECT_THAT(receive.status.message(), HasSubstr("its process has ended"));
}

TEST(NetworkMessenger, APeerThatWasGivenUpIsNotSoughtAnyMore) {
  NetworkGroup group(2, 1);
  ASSERT_EQ(group.exchange(10, 1000, freshSeed()), "");
  rendezvous::RailAddress address = group[1].rails().front();
  Parcel receive(1, {5, 5, 5}, 1000);
  group[0].receive(receive);
  group.destroy(1);
  ASSERT_TRUE(group.drive([&] { return receive.numFinished > 0; }, milliseconds(3000)));
  const tcp::Socket listener = tcp::Socket::listen(address).value();
  group.drive([] { return false; }, milliseconds(800));
  EXPECT_FALSE(listener.accept());
}

TEST(NetworkMessenger, BadOptionsAreNamed) {
  rendezvous::MemoryStore store;
  NetworkOptions options = loopbackOptions(0, 2, 1);
  options.mode = "none";
  EXPECT_THAT(NetworkMessenger::create(store, options).status().message(), HasSubstr("'none' is not a mode"));
  for (const char* mode : {"authenticated", "encrypted"}) {
    options.mode = mode;
    EXPECT_THAT(NetworkMessenger::create(store, options).status().message(), HasSubstr("AGSPEED_JOB_KEY"));
  }
  options.mode = "";
  options.rails.clear();
  for (const int64_t flows : {-1, 1000}) {
    options.flowsPerInterface = flows;
    EXPECT_THAT(NetworkMessenger::create(store, options).status().message(),
                HasSubstr("with " + std::to_string(flows) + " flows each"));
  }
  options.flowsPerInterface = 0;
  options.interfaces = "nosuch0";
  EXPECT_THAT(NetworkMessenger::create(store, options).status().message(), HasSubstr("'nosuch0' selects no interface"));
}

TEST(NetworkMessenger, AnInterfaceMayCarrySeveralFlows) {
  NetworkGroup group(2, 2, [](NetworkOptions& options) { options.flowsPerInterface = 3; });
  EXPECT_THAT(group[0].describe(), HasSubstr("over 6 rails: 127.0.0.1, 127.0.0.2, 127.0.0.1, "));
  ASSERT_EQ(group.exchange(2, 16, freshSeed()), "");
  Parcel send(1, {9, 9, 9}, 16 << 20);
  Parcel receive(0, {9, 9, 9}, 16 << 20);
  group[1].receive(receive);
  group[0].send(send);
  ASSERT_TRUE(group.drive([&] { return send.numFinished > 0 && receive.numFinished > 0; }));
  for (const multirail::MultirailCounters::Rail& rail : group[0].counters().rails) EXPECT_GT(rail.numBytes, 1u << 18);
}

TEST(NetworkMessenger, SaysHowItIsConnected) {
  NetworkGroup group(2, 2);
  EXPECT_EQ(group[0].describe(), "opportunistic over 2 rails: 127.0.0.1, 127.0.0.2");
}

struct EndingCase {
  const char* name;
  bool sharesMemory;
  bool isConnectedBefore;  ///< true: both ways; false: only the rank that ends has connected
};

class EndingRanks : public testing::TestWithParam<EndingCase> {};

TEST_P(EndingRanks, AreHeardToTheEnd) {
  constexpr uint32_t kMessages = 60;
  constexpr size_t kBytes = 1000;
  NetworkGroup group(2, 1, [](NetworkOptions& options) { options.sharesMemory = GetParam().sharesMemory; });
  if (GetParam().isConnectedBefore) {
    ASSERT_EQ(group.exchange(10, 1000, freshSeed()), "");
  }
  std::vector<std::unique_ptr<Parcel>> sends, receives;
  for (uint32_t i = 0; i < kMessages; ++i) {
    sends.push_back(std::make_unique<Parcel>(0, wire::MessageId{7, i, 0}, kBytes));
    sends.back()->storage[i] = std::byte{9};
    group[1].send(*sends.back());
    if (i == 0) {
      ASSERT_TRUE(group.drive([&] { return !group[1].hasUnsent(); }));
    }
  }
  // From here on rank 0 does nothing until rank 1 has ended.
  for (int i = 0; i < 10'000 && group[1].hasUnsent(); ++i) group[1].progress(io::Clock::now() + milliseconds(1));
  ASSERT_FALSE(group[1].hasUnsent());
  group.destroy(1);
  for (uint32_t i = 0; i < kMessages; ++i) {
    receives.push_back(std::make_unique<Parcel>(1, wire::MessageId{7, i, 0}, kBytes));
    group[0].receive(*receives.back());
  }
  const auto isDone = [](const auto& parcel) { return parcel->numFinished > 0; };
  ASSERT_TRUE(group.drive([&] { return std::all_of(receives.begin(), receives.end(), isDone); }));
  for (uint32_t i = 0; i < kMessages; ++i) {
    ASSERT_TRUE(receives[i]->status.isOk()) << "message " << i << ": " << receives[i]->status.toString();
    EXPECT_EQ(receives[i]->storage, sends[i]->storage) << "message " << i;
  }
  Parcel never(1, {8, 8, 8}, 100);
  group[0].receive(never);
  ASSERT_TRUE(group.drive([&] { return never.numFinished > 0; }, milliseconds(3000)));
  EXPECT_THAT(never.status.message(), HasSubstr("its process has ended"));
}

INSTANTIATE_TEST_SUITE_P(Ways, EndingRanks,
                         testing::Values(EndingCase{"NetworkOneWay", false, false},
                                         EndingCase{"NetworkBothWays", false, true},
                                         EndingCase{"MemoryOneWay", true, false},
                                         EndingCase{"MemoryBothWays", true, true}),
                         [](const auto& info) { return info.param.name; });

struct FaultCase {
  const char* name;
  faulty::FaultPlan plan;
};

class FrameFaults : public testing::TestWithParam<FaultCase> {};

TEST_P(FrameFaults, LoseNoMessage) {
  const uint64_t seed = freshSeed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  uint64_t numRails = 0;
  NetworkGroup group(3, 2, [&](NetworkOptions& options) {
    options.decorate = [&, plan = GetParam().plan](std::unique_ptr<transport::Rail> rail) mutable {
      plan.seed = seed + numRails++;
      return std::make_unique<faulty::FaultyRail>(std::move(rail), plan);
    };
  });
  EXPECT_EQ(group.exchange(100, 1 << 18, seed), "");
}

INSTANTIATE_TEST_SUITE_P(Kinds, FrameFaults,
                         testing::Values(FaultCase{"Dropped", {.dropped = 0.1}},
                                         FaultCase{"Repeated", {.repeated = 0.3}},
                                         FaultCase{"Delayed", {.delayed = 0.3}},
                                         FaultCase{"All", {.dropped = 0.1, .repeated = 0.1, .delayed = 0.1}}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace agspeed::comm::network

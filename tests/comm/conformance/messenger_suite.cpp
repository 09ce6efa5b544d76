// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/conformance/messenger_suite.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "runtime/base/format.h"

namespace agspeed::comm::conformance {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// A transfer that owns its bytes and counts how often it finished.
struct Parcel final : messaging::Transfer {
  std::vector<std::byte> storage;
  int numFinished = 0;
  Status status;

  Parcel(int to, wire::MessageId name, size_t size) : storage(size) {
    peer = to;
    id = name;
    bytes = storage;
  }
  void finished(const Status& result) override {
    ++numFinished;
    status = result;
  }
};

/// Fills in bytes that differ by sender, receiver, name and position.
void fill(Parcel& parcel, int source, int destination) {
  const uint64_t salt =
      parcel.id.sequence * 1009 + parcel.id.step * 31 + static_cast<uint64_t>(source * 7 + destination);
  for (size_t i = 0; i < parcel.storage.size(); ++i) {
    parcel.storage[i] = static_cast<std::byte>((salt + i * 2654435761u + i / 251) >> 3);
  }
}

/// Drives all ranks until `done` holds. Returns false if it does not within 20 s.
template <typename Done>
bool drive(MessengerGroup& group, int size, Done done) {
  const auto limit = io::Clock::now() + seconds(20);
  while (!done()) {
    if (io::Clock::now() > limit) return false;
    for (int rank = 0; rank < size; ++rank) group.messenger(rank).progress({});
  }
  return true;
}

bool allFinished(const std::vector<std::unique_ptr<Parcel>>& parcels) {
  return std::all_of(parcels.begin(), parcels.end(), [](const auto& parcel) { return parcel->numFinished > 0; });
}

TEST_P(MessengerConformance, RanksAndSizesAreThoseAskedFor) {
  auto group = GetParam().make(3);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(group->messenger(rank).rank(), rank);
    EXPECT_EQ(group->messenger(rank).size(), 3);
  }
}

TEST_P(MessengerConformance, ManyMessagesInRandomOrderArriveWholeAndOnce) {
  constexpr int kRanks = 4;
  constexpr int kMessages = 40;
  // Sizes at and around the limits at which the messenger changes its protocol.
  constexpr size_t kSizes[] = {0,     1,     7,     64,    1000,   4096,   4097,   65535, 65536,
                               65537, 81919, 81920, 81921, 131071, 131072, 131073, 200001};
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  auto group = GetParam().make(kRanks);
  std::vector<std::unique_ptr<Parcel>> sends, receives;
  std::vector<std::pair<bool, size_t>> starts;  // pairs: whether it is a send, and the index of its transfer
  for (int source = 0; source < kRanks; ++source) {
    for (int destination = 0; destination < kRanks; ++destination) {
      for (uint32_t i = 0; source != destination && i < kMessages; ++i) {
        const size_t size = kSizes[random() % std::size(kSizes)];
        const wire::MessageId id{i % 3, i, random() % 2 ? i : uint64_t{i} << 40};
        sends.push_back(std::make_unique<Parcel>(destination, id, size));
        fill(*sends.back(), source, destination);
        receives.push_back(std::make_unique<Parcel>(source, id, size));
        starts.emplace_back(true, sends.size() - 1);
        starts.emplace_back(false, receives.size() - 1);
      }
    }
  }
  std::shuffle(starts.begin(), starts.end(), random);
  for (auto [isSend, index] : starts) {
    // A transfer starts at the messenger of its own rank, which is the peer of the matching transfer.
    if (isSend) group->messenger(receives[index]->peer).send(*sends[index]);
    if (!isSend) group->messenger(sends[index]->peer).receive(*receives[index]);
    if (random() % 4 == 0) group->messenger(static_cast<int>(random() % kRanks)).progress({});
  }
  ASSERT_TRUE(drive(*group, kRanks, [&] { return allFinished(sends) && allFinished(receives); }));
  for (size_t i = 0; i < sends.size(); ++i) {
    ASSERT_TRUE(sends[i]->status.isOk()) << sends[i]->status.toString();
    ASSERT_TRUE(receives[i]->status.isOk()) << receives[i]->status.toString();
    ASSERT_EQ(sends[i]->numFinished, 1);
    ASSERT_EQ(receives[i]->numFinished, 1);
    ASSERT_EQ(sends[i]->storage, receives[i]->storage) << "message " << i;
  }
}

TEST_P(MessengerConformance, OffersAreSeenUntilTheyAreReceived) {
  for (const size_t size : {size_t{0}, size_t{5}, size_t{300000}}) {
    SCOPED_TRACE(size);
    auto group = GetParam().make(3);
    const wire::MessageId id{1, 2, 3};
    Parcel send(2, id, size), receive(0, id, size);
    fill(send, 0, 2);
    messaging::Messenger& receiver = group->messenger(2);
    EXPECT_FALSE(receiver.probe(0, id));
    group->messenger(0).send(send);
    ASSERT_TRUE(drive(*group, 3, [&] { return receiver.probe(0, id); }));
    EXPECT_FALSE(receiver.probe(1, id));
    EXPECT_FALSE(receiver.probe(0, {1, 2, 4}));
    receiver.receive(receive);
    ASSERT_TRUE(drive(*group, 3, [&] { return send.numFinished == 1 && receive.numFinished == 1; }));
    EXPECT_EQ(receive.storage, send.storage);
    EXPECT_FALSE(receiver.probe(0, id));
  }
}

TEST_P(MessengerConformance, AMessageOfAnotherLengthFailsItsReceive) {
  for (const auto& [sent, expected] : {std::pair<size_t, size_t>{12, 8},
                                       {8, 12},
                                       {0, 5},
                                       {100000, 8},
                                       {100000, 110000},
                                       {100000, 300000},
                                       {300000, 8},
                                       {300000, 100000}}) {
    auto group = GetParam().make(2);
    Parcel send(1, {1, 2, 3}, sent), receive(0, {1, 2, 3}, expected), later(1, {1, 2, 4}, 5), after(0, {1, 2, 4}, 5);
    fill(later, 0, 1);
    group->messenger(0).send(send);
    group->messenger(1).receive(receive);
    ASSERT_TRUE(drive(*group, 2, [&] { return receive.numFinished > 0; })) << sent << " for " << expected;
    EXPECT_EQ(receive.status.code(), StatusCode::kInvalidArgument) << receive.status.toString();
    EXPECT_NE(receive.status.message().find(std::to_string(sent)), std::string::npos) << receive.status.toString();
    EXPECT_NE(receive.status.message().find(std::to_string(expected)), std::string::npos) << receive.status.toString();
    group->messenger(0).send(later);
    group->messenger(1).receive(after);
    ASSERT_TRUE(drive(*group, 2, [&] { return after.numFinished > 0 && later.numFinished > 0; }));
    EXPECT_EQ(after.storage, later.storage);
  }
}

TEST_P(MessengerConformance, AReceiveThatSaysSoTakesAShorterMessage) {
  for (const bool isSentFirst : {false, true}) {
    auto group = GetParam().make(2);
    uint64_t sequence = 0;
    for (const auto& [sent, room] : {std::pair<size_t, size_t>{12, 12},
                                     {0, 5},
                                     {0, 300000},
                                     {8, 300000},
                                     {100000, 100001},
                                     {100000, 4000000},
                                     {70000, 100000},
                                     {300000, 4000000},
                                     {13, 12},
                                     {300001, 300000}}) {
      Parcel send(1, {1, 2, ++sequence}, sent), receive(0, {1, 2, sequence}, room);
      send.mayBeShorter = receive.mayBeShorter = true;
      fill(send, 0, 1);
      if (isSentFirst) group->messenger(0).send(send);
      for (int i = 0; i < 40; ++i) group->messenger(i % 2).progress({});
      group->messenger(1).receive(receive);
      if (!isSentFirst) group->messenger(0).send(send);
      ASSERT_TRUE(drive(*group, 2, [&] { return receive.numFinished > 0 && send.numFinished > 0; }));
      EXPECT_EQ(receive.status.isOk(), sent <= room) << sent << " for " << room << receive.status.toString();
      if (sent > room) continue;
      EXPECT_EQ(receive.numReceived, sent) << "for " << room;
      receive.storage.resize(sent);
      EXPECT_EQ(receive.storage, send.storage) << sent << " for " << room;
    }
  }
}

TEST_P(MessengerConformance, AMessageMayBeShorterThanARoomThatBothEndsKnow) {
  for (const bool isSentFirst : {false, true}) {
    SCOPED_TRACE(isSentFirst ? "sent first" : "received first");
    auto group = GetParam().make(2);
    uint64_t sequence = 0;
    for (const size_t room : {20000, 70000, 100000, 131072, 300000}) {
      for (const size_t sent : {room, room - 1, room * 3 / 4, room / 2, size_t{10}}) {
        SCOPED_TRACE(formatText("{} bytes for {}", sent, room));
        Parcel send(1, {1, 2, ++sequence}, sent), receive(0, {1, 2, sequence}, room);
        send.room = receive.room = room;
        fill(send, 0, 1);
        if (isSentFirst) group->messenger(0).send(send);
        for (int i = 0; i < 40; ++i) group->messenger(i % 2).progress({});
        group->messenger(1).receive(receive);
        for (int i = 0; i < 40; ++i) group->messenger(i % 2).progress({});
        if (!isSentFirst) group->messenger(0).send(send);
        ASSERT_TRUE(drive(*group, 2, [&] { return receive.numFinished > 0 && send.numFinished > 0; }));
        ASSERT_TRUE(receive.status.isOk()) << receive.status.toString();
        ASSERT_EQ(receive.numReceived, sent);
        receive.storage.resize(sent);
        EXPECT_EQ(receive.storage, send.storage);
      }
    }
  }
}

TEST_P(MessengerConformance, ACancelledReceiveIsLeftAloneAndItsMessageDiscarded) {
  auto group = GetParam().make(2);
  Parcel receive(0, {1, 1, 1}, 1000), send(1, {1, 1, 1}, 1000);
  fill(send, 0, 1);
  group->messenger(1).receive(receive);
  group->messenger(1).progress({});
  group->messenger(1).cancel(receive, unavailable("not wanted any more"));
  EXPECT_EQ(receive.numFinished, 1);
  EXPECT_EQ(receive.status.message(), "not wanted any more");
  group->messenger(0).send(send);
  ASSERT_TRUE(drive(*group, 2, [&] { return send.numFinished > 0; }));
  for (int i = 0; i < 100; ++i) group->messenger(1).progress({});
  EXPECT_EQ(receive.numFinished, 1);
  EXPECT_EQ(receive.storage, std::vector<std::byte>(1000));
}

TEST_P(MessengerConformance, NothingIsKeptOfAForgottenCommunicator) {
  for (const size_t size : {size_t{0}, size_t{5}, size_t{100000}, size_t{300000}}) {
    SCOPED_TRACE(size);
    auto group = GetParam().make(2);
    messaging::Messenger& receiver = group->messenger(1);
    Parcel before(1, {1, 2, 3}, size), after(1, {1, 2, 4}, size), other(1, {2, 2, 4}, 100), receive(0, {2, 2, 4}, 100);
    fill(other, 0, 1);
    group->messenger(0).send(before);
    ASSERT_TRUE(drive(*group, 2, [&] { return receiver.probe(0, before.id); }));
    receiver.dropCommunicator(1);
    EXPECT_FALSE(receiver.probe(0, before.id));
    group->messenger(0).send(after);
    group->messenger(0).send(other);
    receiver.receive(receive);
    ASSERT_TRUE(drive(*group, 2, [&] { return receive.numFinished > 0; }));
    EXPECT_EQ(receive.storage, other.storage);
    for (int i = 0; i < 100; ++i) {
      group->messenger(0).progress({});
      receiver.progress({});
    }
    EXPECT_FALSE(receiver.probe(0, after.id));
    EXPECT_TRUE(drive(*group, 2, [&] { return before.numFinished > 0 && after.numFinished > 0; })) << "they end";
  }
}

TEST_P(MessengerConformance, ACancelledSendIsLeftAlone) {
  auto group = GetParam().make(2);
  Parcel send(1, {1, 1, 1}, 1 << 20);
  group->messenger(0).send(send);
  if (send.numFinished == 0) group->messenger(0).cancel(send, unavailable("not wanted any more"));
  for (int i = 0; i < 100; ++i) {
    group->messenger(0).progress({});
    group->messenger(1).progress({});
  }
  EXPECT_EQ(send.numFinished, 1);
}

TEST_P(MessengerConformance, ACancelledSendTakesNoOtherOfTheSameBytesWithIt) {
  for (const size_t size : {size_t{100000}, size_t{300000}}) {
    SCOPED_TRACE(size);
    auto group = GetParam().make(2);
    messaging::Messenger &sender = group->messenger(0), &receiver = group->messenger(1);
    Parcel cancelled(1, {1, 1, 1}, size), send(1, {1, 1, 2}, size), handshake(1, {1, 1, 3}, 8);
    Parcel missed(0, cancelled.id, size), receive(0, send.id, size), handshakeReceived(0, handshake.id, 8);
    fill(send, 0, 1);
    cancelled.bytes = send.bytes;
    for (Parcel* each : {&missed, &receive, &handshakeReceived}) receiver.receive(*each);
    sender.send(handshake);
    ASSERT_TRUE(drive(*group, 2, [&] { return handshakeReceived.numFinished > 0; })) << "they are connected";
    sender.send(cancelled);
    sender.send(send);
    if (cancelled.numFinished == 0) sender.cancel(cancelled, unavailable("not wanted any more"));
    EXPECT_TRUE(drive(*group, 2, [&] { return send.numFinished > 0 && receive.numFinished > 0; }));
    EXPECT_EQ(receive.storage, send.storage);
    for (Parcel* each : {&missed, &receive}) {
      if (each->numFinished == 0) receiver.cancel(*each, unavailable("the test ends"));
    }
  }
}

TEST_P(MessengerConformance, ProgressReturnsAtItsDeadlineAndSaysWhetherSomethingFinished) {
  auto group = GetParam().make(2);
  messaging::Messenger& receiver = group->messenger(1);
  Parcel receive(0, {1, 1, 1}, 4), send(1, {1, 1, 1}, 4);
  receiver.receive(receive);
  const auto until = io::Clock::now() + milliseconds(5);
  EXPECT_FALSE(receiver.progress(until));
  EXPECT_GE(io::Clock::now(), until);
  group->messenger(0).send(send);
  const auto limit = io::Clock::now() + seconds(20);
  bool didFinish = false;
  while (!didFinish && io::Clock::now() < limit) {
    group->messenger(0).progress({});
    didFinish = receiver.progress(io::Clock::now() + milliseconds(1));
  }
  EXPECT_TRUE(didFinish);
  EXPECT_EQ(receive.numFinished, 1);
}

TEST_P(MessengerConformance, AWakeEndsAWaitFromAnotherThread) {
  auto group = GetParam().make(2);
  std::thread waker([&] {
    std::this_thread::sleep_for(milliseconds(5));
    group->messenger(0).wake();
  });
  const auto limit = io::Clock::now() + seconds(20);
  group->messenger(0).progress(limit);
  EXPECT_LT(io::Clock::now(), limit);
  waker.join();
  group->messenger(0).wake();  // a wake-up before the wait counts as well
  group->messenger(0).progress(limit);
  EXPECT_LT(io::Clock::now(), limit);
}

TEST_P(MessengerConformance, RanksInThreadsOfTheirOwnExchangeManyMessages) {
  constexpr int kRanks = 3;
  constexpr uint32_t kRounds = 200;
  auto group = GetParam().make(kRanks);
  std::vector<int> numWrong(kRanks, 0);
  auto run = [&](int rank) {
    messaging::Messenger& messenger = group->messenger(rank);
    const int next = (rank + 1) % kRanks, previous = (rank + kRanks - 1) % kRanks;
    for (uint32_t round = 0; round < kRounds; ++round) {
      const size_t size = (round * 977) % 9000;
      Parcel send(next, {0, 0, round}, size), receive(previous, {0, 0, round}, size),
          expected(previous, receive.id, size);
      fill(send, rank, next);
      fill(expected, previous, rank);
      messenger.receive(receive);
      messenger.send(send);
      const auto limit = io::Clock::now() + seconds(20);
      while (!(send.numFinished && receive.numFinished) && io::Clock::now() < limit) messenger.progress(limit);
      numWrong[static_cast<size_t>(rank)] +=
          receive.storage != expected.storage || !receive.status.isOk() || !send.status.isOk();
    }
    // A messenger may still have to acknowledge the last message.
    for (int i = 0; i < 50; ++i) messenger.progress(io::Clock::now() + milliseconds(1));
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) threads.emplace_back(run, rank);
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(std::accumulate(numWrong.begin(), numWrong.end(), 0), 0);
}

}  // namespace
}  // namespace agspeed::comm::conformance

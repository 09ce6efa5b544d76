// SPDX-License-Identifier: Apache-2.0
// NCCL's expectations of a network table, tested by two processes on the loopback interface. The same cases run on
// NCCL's own socket table, which shows that they require no more than NCCL does.
#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "tests/comm/nccl_net/process_pair.h"
#include "tests/comm/nccl_net/sources.h"

namespace agspeed::comm::nccl {
namespace {

using std::chrono::milliseconds;
using Bytes = std::vector<std::byte>;

class NetContract : public testing::TestWithParam<TableSource> {
 protected:
  void expectBoth(const SideBody& sender, const SideBody& receiver) { judge(runTwo(GetParam(), sender, receiver)); }
  void expectOne(const std::function<void(NetTable&)>& body) { judge(runOne(GetParam(), body)); }
  bool isOurs() const { return GetParam().version != 0; }

 private:
  static void judge(const std::string& failure) {
    if (failure.starts_with("skip: ")) GTEST_SKIP() << failure.substr(6);
    EXPECT_EQ(failure, "");
  }
};

/// sendOne() and receiveOne() pass a message from one end to the other. `capacity` is the size of the receive.
void sendOne(Side& side, void* comm, uint64_t seed, size_t size) {
  Bytes bytes = patternOf(seed, size);
  Pending pending = side.send(comm, bytes);
  side.wait(pending);
}
void receiveOne(Side& side, void* comm, uint64_t seed, size_t size, size_t capacity, void* hint = nullptr) {
  Bytes bytes(capacity, std::byte{0xEE});
  Pending pending = side.receive(comm, {bytes}, {0}, hint);
  side.wait(pending);
  require(pending.sizes[0] == static_cast<int>(size),
          "a message of " + std::to_string(size) + " bytes is reported as " + std::to_string(pending.sizes[0]));
  const Bytes expected = patternOf(seed, size);
  require(std::equal(expected.begin(), expected.end(), bytes.begin()), "wrong bytes of " + std::to_string(size));
  const bool isRestLeft = std::all_of(bytes.begin() + static_cast<ptrdiff_t>(size), bytes.end(),
                                      [](std::byte each) { return each == std::byte{0xEE}; });
  require(isRestLeft, "bytes behind the message were written");
}

TEST_P(NetContract, HasADeviceThatTakesHostMemory) {
  expectOne([](NetTable& table) {
    require(table.missingFunctions().empty(), "the table lacks functions that NCCL calls");
    int count = 0;
    requireOk(table.devices(count), "devices");
    require(count > 0, "there is no device");
    for (int device = 0; device < count; ++device) {
      DeviceProperties properties;
      requireOk(table.properties(device, properties), "getProperties");
      require(!properties.name.empty(), "the device has no name");
      require((properties.ptrSupport & kPointerHost) != 0, "the device does not take host memory");
      require(properties.speed > 0, "its speed is " + std::to_string(properties.speed));
      require(properties.maxComms > 0 && properties.maxRecvs > 0, "it has no connections");
      require(properties.maxP2pBytes > 0 && properties.maxP2pBytes <= size_t{1} << 40, "NCCL refuses its limit");
    }
  });
}

TEST_P(NetContract, CarriesMessagesOfAllSizes) {
  constexpr size_t kSizes[] = {0, 1, 8, 4095, 65535, 65536, 131072, 131073, 1048576, 5000011};
  expectBoth(
      [&](Side& side) {
        void* comm = side.openSend();
        for (const size_t size : kSizes) sendOne(side, comm, size, size);
        side.barrier();
        requireOk(side.table().closeSend(comm), "closeSend");
      },
      [&](Side& side) {
        void* comm = side.openReceive();
        for (const size_t size : kSizes) receiveOne(side, comm, size, size, size);
        side.barrier();
        requireOk(side.table().closeReceive(comm), "closeRecv");
      });
}

TEST_P(NetContract, AReceiveMayBeLargerThanItsMessage) {
  constexpr std::pair<size_t, size_t> kSizes[] = {{0, 1},         {0, 4194304},       {1, 2},
                                                  {100, 1000000}, {65536, 4194304},   {131072, 131073},
                                                  {90000, 90001}, {1048577, 4194304}, {4194303, 4194304}};
  expectBoth(
      [&](Side& side) {
        void* comm = side.openSend();
        for (const auto& [size, capacity] : kSizes) sendOne(side, comm, size, size);
        side.barrier();
        requireOk(side.table().closeSend(comm), "closeSend");
      },
      [&](Side& side) {
        void* comm = side.openReceive();
        for (const auto& [size, capacity] : kSizes) receiveOne(side, comm, size, size, capacity);
        side.barrier();
        requireOk(side.table().closeReceive(comm), "closeRecv");
      });
}

TEST_P(NetContract, ARequestReplacesTheHintOfEarlyCompletion) {
  expectBoth(
      [](Side& side) {
        void* comm = side.openSend();
        sendOne(side, comm, 5, 1000);
        side.barrier();
        requireOk(side.table().closeSend(comm), "closeSend");
      },
      [](Side& side) {
        void* comm = side.openReceive();
        receiveOne(side, comm, 5, 1000, 2000, kOptionalCompletion);
        side.barrier();
        requireOk(side.table().closeReceive(comm), "closeRecv");
      });
}

TEST_P(NetContract, EitherEndMayBeginASetUp) {
  for (const bool acceptsFirst : {false, true}) {
    expectBoth(
        [&](Side& side) {
          Handle handle;
          side.hear(handle);
          void* comm = nullptr;
          if (acceptsFirst) side.barrier();
          requireOk(side.table().connect(0, handle, comm), "the first connect");
          if (!acceptsFirst) side.barrier();
          while (comm == nullptr) requireOk(side.table().connect(0, handle, comm), "connect");
          sendOne(side, comm, 3, 1000);
          side.barrier();
          requireOk(side.table().closeSend(comm), "closeSend");
        },
        [&](Side& side) {
          Handle handle = {};
          void* listener = side.listen(handle);
          side.tell(handle);
          void* comm = nullptr;
          if (acceptsFirst) {
            requireOk(side.table().accept(listener, comm), "accept before a connect");
            require(comm == nullptr, "accept gave a connection without a connect");
          }
          side.barrier();
          comm = side.accept(listener);
          receiveOne(side, comm, 3, 1000, 1000);
          side.barrier();
          requireOk(side.table().closeReceive(comm), "closeRecv");
          requireOk(side.table().closeListen(listener), "closeListen");
        });
  }
}

TEST_P(NetContract, ThirtyTwoRequestsAreUnderWay) {
  constexpr size_t kBytes = 200000;
  expectBoth(
      [](Side& side) {
        void* comm = side.openSend();
        std::vector<Bytes> bytes;
        std::vector<Pending> pending;
        for (int i = 0; i < kMaxRequests; ++i) bytes.push_back(patternOf(static_cast<uint64_t>(i), kBytes));
        for (Bytes& each : bytes) pending.push_back(side.send(comm, each));
        side.wait(pending);
        side.barrier();
        requireOk(side.table().closeSend(comm), "closeSend");
      },
      [](Side& side) {
        void* comm = side.openReceive();
        std::vector<Bytes> bytes(kMaxRequests, Bytes(kBytes));
        std::vector<Pending> pending;
        for (Bytes& each : bytes) pending.push_back(side.receive(comm, {each}));
        side.wait(pending);
        for (int i = 0; i < kMaxRequests; ++i) {
          require(bytes[static_cast<size_t>(i)] == patternOf(static_cast<uint64_t>(i), kBytes),
                  "message " + std::to_string(i) + " has wrong bytes");
        }
        side.barrier();
        requireOk(side.table().closeReceive(comm), "closeRecv");
      });
}

TEST_P(NetContract, SeveralConnectionsComeFromOneListener) {
  constexpr uint64_t kConnections = 5;
  expectBoth(
      [](Side& side) {
        Handle handle;
        side.hear(handle);
        std::vector<void*> comms;
        for (uint64_t i = 0; i < kConnections; ++i) {
          comms.push_back(side.connect(handle));
          sendOne(side, comms.back(), i, 50000);  // the seed shows that accepts follow the order of the connects
        }
        side.barrier();
        for (void* comm : comms) requireOk(side.table().closeSend(comm), "closeSend");
      },
      [](Side& side) {
        Handle handle = {};
        void* listener = side.listen(handle);
        side.tell(handle);
        std::vector<void*> comms;
        for (uint64_t i = 0; i < kConnections; ++i) {
          comms.push_back(side.accept(listener));
          receiveOne(side, comms.back(), i, 50000, 60000);
        }
        side.barrier();
        for (void* comm : comms) requireOk(side.table().closeReceive(comm), "closeRecv");
        requireOk(side.table().closeListen(listener), "closeListen");
      });
}

TEST_P(NetContract, BothSidesSendAndReceiveAtOnce) {
  const auto body = [](Side& side, bool isFirst) {
    void* send = isFirst ? side.openSend() : nullptr;
    void* receive = side.openReceive();
    if (!isFirst) send = side.openSend();
    for (uint64_t round = 0; round < 20; ++round) {
      Bytes out = patternOf(round + (isFirst ? 100 : 200), 300000), in(300000);
      std::vector<Pending> pending = {side.receive(receive, {in}), side.send(send, out)};
      side.wait(pending);
      require(in == patternOf(round + (isFirst ? 200 : 100), in.size()),
              "wrong bytes in round " + std::to_string(round));
    }
    side.barrier();
    requireOk(side.table().closeSend(send), "closeSend");
    requireOk(side.table().closeReceive(receive), "closeRecv");
  };
  expectBoth([&](Side& side) { body(side, false); }, [&](Side& side) { body(side, true); });
}

TEST_P(NetContract, PeersComeAndGo) {
  constexpr uint64_t kRounds = 6;
  expectBoth(
      [](Side& side) {
        for (uint64_t round = 0; round < kRounds; ++round) {
          void* comm = side.openSend();
          sendOne(side, comm, round, 100000);
          side.barrier();
          requireOk(side.table().closeSend(comm), "closeSend");
        }
      },
      [](Side& side) {
        for (uint64_t round = 0; round < kRounds; ++round) {
          void* comm = side.openReceive();
          receiveOne(side, comm, round, 100000, 100000);
          side.barrier();
          requireOk(side.table().closeReceive(comm), "closeRecv");
        }
      });
}

TEST_P(NetContract, ALongerSendFailsItsReceive) {
  expectBoth(
      [](Side& side) {
        void* comm = side.openSend();
        Bytes bytes(300000);
        Pending pending = side.send(comm, bytes);
        (void)side.testFor(pending, milliseconds(300));
        side.barrier();
        (void)side.table().closeSend(comm);
      },
      [](Side& side) {
        void* comm = side.openReceive();
        Bytes bytes(200000);
        Pending pending = side.receive(comm, {bytes});
        side.waitForFailure(pending);
        side.barrier();
        (void)side.table().closeReceive(comm);
      });
}

TEST_P(NetContract, AKilledPeerEndsInAnError) {
  expectBoth(
      [](Side& side) {
        void* comm = side.openSend();
        sendOne(side, comm, 1, 1000);
        side.barrier();
        raise(SIGKILL);
        (void)comm;
      },
      [](Side& side) {
        void* comm = side.openReceive();
        receiveOne(side, comm, 1, 1000, 1000);
        Bytes bytes(1000000);
        Pending pending = side.receive(comm, {bytes});
        side.barrier();
        side.waitForFailure(pending);
        (void)side.table().closeReceive(comm);
      });
}

TEST_P(NetContract, ConnectionsCloseWithWorkInFlight) {
  expectBoth(
      [](Side& side) {
        void* comm = side.openSend();
        Bytes bytes = patternOf(1, 8000000);
        Pending pending = side.send(comm, bytes);
        side.barrier();
        requireOk(side.table().closeSend(comm), "closeSend");
        side.barrier();
      },
      [](Side& side) {
        void* comm = side.openReceive();
        Bytes bytes(8000000);
        Pending pending = side.receive(comm, {bytes});
        (void)side.testFor(pending, milliseconds(1));
        side.barrier();
        requireOk(side.table().closeReceive(comm), "closeRecv");
        const Bytes before = bytes;
        side.barrier();
        require(bytes == before, "bytes were written after closeRecv");
      });
}

TEST_P(NetContract, WhatWasSentBeforeACloseStillArrives) {
  expectBoth(
      [](Side& side) {
        void* comm = side.openSend();
        for (uint64_t i = 0; i < 10; ++i) sendOne(side, comm, i, 60000);
        requireOk(side.table().closeSend(comm), "closeSend");
        side.barrier();
      },
      [](Side& side) {
        void* comm = side.openReceive();
        for (uint64_t i = 0; i < 10; ++i) receiveOne(side, comm, i, 60000, 70000);
        side.barrier();
        requireOk(side.table().closeReceive(comm), "closeRecv");
      });
}

TEST_P(NetContract, InitAndFinalizeRepeat) {
  expectOne([](NetTable& table) {
    requireOk(table.finalize(), "finalize");
    requireOk(table.init(), "init again");
    int count = 0;
    requireOk(table.devices(count), "devices");
    require(count > 0, "there is no device after the second init");
  });
}

/// A random program, made from one seed on both sides.
TEST_P(NetContract, RandomProgramsAgreeWithAModel) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  constexpr uint64_t kMessages = 300;
  static constexpr size_t kSizes[] = {0, 1, 100, 5000, 65536, 100000, 300001, 1048576};
  const auto sizeOf = [seed](uint64_t index) { return kSizes[std::mt19937_64(seed + index)() % std::size(kSizes)]; };
  const auto extraOf = [seed](uint64_t index) { return std::mt19937_64(seed + 7777 + index)() % 3 * 1000; };
  expectBoth(
      [&](Side& side) {
        void* comm = side.openSend();
        std::mt19937_64 random(seed + 1);
        for (uint64_t next = 0; next < kMessages;) {
          const uint64_t count = std::min<uint64_t>(1 + random() % 16, kMessages - next);
          std::vector<Bytes> bytes;
          std::vector<Pending> pending;
          for (uint64_t i = 0; i < count; ++i) bytes.push_back(patternOf(next + i, sizeOf(next + i)));
          for (Bytes& each : bytes) pending.push_back(side.send(comm, each));
          side.wait(pending);
          next += count;
        }
        side.barrier();
        requireOk(side.table().closeSend(comm), "closeSend");
      },
      [&](Side& side) {
        void* comm = side.openReceive();
        std::mt19937_64 random(seed + 2);
        for (uint64_t next = 0; next < kMessages;) {
          const uint64_t count = std::min<uint64_t>(1 + random() % 16, kMessages - next);
          std::vector<Bytes> bytes;
          std::vector<Pending> pending;
          for (uint64_t i = 0; i < count; ++i) bytes.emplace_back(sizeOf(next + i) + extraOf(next + i));
          for (Bytes& each : bytes) pending.push_back(side.receive(comm, {each}));
          side.wait(pending);
          for (uint64_t i = 0; i < count; ++i) {
            const size_t size = sizeOf(next + i);
            require(pending[i].sizes[0] == static_cast<int>(size), "wrong size of message " + std::to_string(next + i));
            bytes[i].resize(size);
            require(bytes[i] == patternOf(next + i, size), "wrong bytes of message " + std::to_string(next + i));
          }
          next += count;
        }
        side.barrier();
        requireOk(side.table().closeReceive(comm), "closeRecv");
      });
}

INSTANTIATE_TEST_SUITE_P(Tables, NetContract, testing::ValuesIn(allSources()),
                         [](const auto& info) { return info.param.label; });

}  // namespace
}  // namespace agspeed::comm::nccl

// SPDX-License-Identifier: Apache-2.0
// Promises of agspeed's network tables beyond NCCL's contract: groups by tag, errors that name peer and place, bad
// input.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <random>
#include <thread>

#include "comm/channel/ticket.h"
#include "comm/transport/tcp/socket.h"
#include "tests/comm/nccl_net/process_pair.h"
#include "tests/comm/nccl_net/sources.h"

namespace agspeed::comm::nccl {
namespace {

using std::chrono::milliseconds;
using Bytes = std::vector<std::byte>;

class AgspeedNet : public testing::TestWithParam<TableSource> {
 protected:
  void expectBoth(const SideBody& sender, const SideBody& receiver) {
    EXPECT_EQ(runTwo(GetParam(), sender, receiver), "");
  }
  void expectOne(const std::function<void(NetTable&)>& body) { EXPECT_EQ(runOne(GetParam(), body), ""); }
};

TEST_P(AgspeedNet, AGroupMatchesByTag) {
  constexpr size_t kSizes[] = {10, 200000, 0, 70000, 1, 1048576, 65536, 3000};
  constexpr int kParts = 8;
  expectBoth(
      [&](Side& side) {
        void* comm = side.openSend();
        std::vector<Bytes> bytes;
        std::vector<Pending> pending;
        for (int tag = kParts; tag-- > 0;) bytes.push_back(patternOf(static_cast<uint64_t>(tag), kSizes[tag]));
        for (int tag = kParts; tag-- > 0;) {
          pending.push_back(side.send(comm, bytes[static_cast<size_t>(kParts - 1 - tag)], 100 + tag));
        }
        side.wait(pending);
        side.barrier();
        requireOk(side.table().closeSend(comm), "closeSend");
      },
      [&](Side& side) {
        void* comm = side.openReceive();
        std::vector<Bytes> bytes(kParts, Bytes(1048576));
        std::vector<std::span<std::byte>> targets(bytes.begin(), bytes.end());
        std::vector<int> tags;
        for (int tag = 0; tag < kParts; ++tag) tags.push_back(100 + tag);
        Pending pending = side.receive(comm, targets, tags);
        side.wait(pending);
        for (size_t i = 0; i < kParts; ++i) {
          require(pending.sizes[i] == static_cast<int>(kSizes[i]), "part " + std::to_string(i) + " has a wrong size");
          bytes[i].resize(kSizes[i]);
          require(bytes[i] == patternOf(i, kSizes[i]), "part " + std::to_string(i) + " has wrong bytes");
        }
        side.barrier();
        requireOk(side.table().closeReceive(comm), "closeRecv");
      });
}

TEST_P(AgspeedNet, RequestsBeyondThirtyTwoAreNotAcceptedYet) {
  expectBoth(
      [](Side& side) {
        void* comm = side.openSend();
        side.barrier();
        requireOk(side.table().closeSend(comm), "closeSend");
      },
      [](Side& side) {
        void* comm = side.openReceive();
        Bytes bytes(8);
        const std::span<std::byte> target(bytes);
        const int tag = 0;
        void* registration = nullptr;
        for (int i = 0; i <= kMaxRequests; ++i) {
          void* request = nullptr;
          requireOk(side.table().receive(comm, std::span(&target, 1), std::span(&tag, 1), std::span(&registration, 1),
                                         request),
                    "irecv");
          require((request != nullptr) == (i < kMaxRequests), "request " + std::to_string(i) + " is wrong");
        }
        side.barrier();
        requireOk(side.table().closeReceive(comm), "closeRecv");
      });
}

TEST_P(AgspeedNet, WrongCallsAreRefusedWithASentence) {
  expectBoth(
      [](Side& side) {
        void* comm = side.openSend();
        Bytes bytes(100);
        void* registration = nullptr;
        require(side.table().registerMemory(comm, bytes, kPointerCuda, registration) == Result::kInvalidArgument,
                "memory of a device was registered");
        requireLogged({"type 2", "host memory"});
        Pending pending = side.send(comm, bytes);
        side.wait(pending);
        bool isDone = false;
        require(side.table().test(pending.request, isDone, nullptr) != Result::kOk, "a finished request was tested");
        side.barrier();
        requireOk(side.table().closeSend(comm), "closeSend");
      },
      [](Side& side) {
        void* comm = side.openReceive();
        Bytes bytes(100);
        std::vector<std::span<std::byte>> targets(9, std::span<std::byte>(bytes));
        std::vector<int> tags(9, 0);
        std::vector<void*> registrations(9, nullptr);
        void* request = nullptr;
        require(side.table().receive(comm, targets, tags, registrations, request) != Result::kOk, "a group of nine");
        require(request == nullptr, "a group of nine has a request");
        requireLogged({"9 messages"});
        Pending pending = side.receive(comm, {bytes});
        side.wait(pending);
        Handle handle = {};
        void* listener = nullptr;
        require(side.table().listen(7, handle, listener) != Result::kOk, "there is a device 7");
        requireLogged({"device 7"});
        side.barrier();
        requireOk(side.table().closeReceive(comm), "closeRecv");
      });
}

TEST_P(AgspeedNet, TicketsThatAreNotOursAreRefused) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  expectOne([seed](NetTable& table) {
    Handle good = {};
    void* listener = nullptr;
    requireOk(table.listen(0, good, listener), "listen");
    std::mt19937_64 random(seed);
    for (int i = 0; i < 400; ++i) {
      Handle bad = good;
      if (i % 4 == 0) {
        for (std::byte& each : bad) each = static_cast<std::byte>(random());
      } else {
        bad[random() % 118] ^= static_cast<std::byte>(1 + random() % 255);
      }
      void* comm = nullptr;
      require(table.connect(0, bad, comm) != Result::kOk && comm == nullptr, "a changed ticket was taken");
    }
    requireLogged({"none of agspeed's", "NCCL_NET_PLUGIN"});
    requireLogged({"damaged", "another job key"});
    requireOk(table.closeListen(listener), "closeListen");
  });
}

TEST_P(AgspeedNet, UnauthenticatedPeersAtTheListenerDelayNoConnection) {
  expectBoth(
      [](Side& side) {
        Handle handle;
        side.hear(handle);
        const StatusOr<channel::Ticket> ticket = channel::Ticket::decode(handle, {});
        require(ticket.hasValue(), "the ticket");
        std::vector<tcp::Socket> others;
        for (int i = 0; i < 40; ++i) {
          topology::IpAddress any;
          StatusOr<tcp::Socket> socket = tcp::Socket::connect(any, "", ticket.value().addresses[0]);
          require(socket.hasValue(), "connect");
          others.push_back(std::move(socket).value());
        }
        usleep(10000);
        std::mt19937_64 random(5);
        for (size_t i = 0; i < others.size(); ++i) {
          std::array<char, 900> noise = {};
          for (char& each : noise) each = static_cast<char>(random());
          const std::string magic("\x40\0\0\0AGCH", 8);  // the beginning of a hello
          if (i % 2 == 0) std::copy(magic.begin(), magic.end(), noise.begin());
          (void)::send(others[i].descriptor(), noise.data(), i * 20, MSG_NOSIGNAL);
        }
        void* comm = side.connect(handle);
        Bytes bytes = patternOf(1, 1000);
        Pending pending = side.send(comm, bytes);
        side.wait(pending);
        side.barrier();
        requireOk(side.table().closeSend(comm), "closeSend");
      },
      [](Side& side) {
        void* comm = side.openReceive();
        Bytes bytes(1000);
        Pending pending = side.receive(comm, {bytes});
        side.wait(pending);
        require(bytes == patternOf(1, 1000), "wrong bytes");
        side.barrier();
        requireOk(side.table().closeReceive(comm), "closeRecv");
      });
}

TEST_P(AgspeedNet, ADeadListenerIsNamed) {
  expectBoth(
      [](Side& side) {
        const std::string peer = side.exchangeNames();
        Handle handle;
        side.hear(handle);
        side.barrier();
        usleep(100000);
        void* comm = nullptr;
        Result result = Result::kOk;
        for (int i = 0; i < 100000 && result == Result::kOk; ++i) {
          result = side.table().connect(0, handle, comm);
          require(comm == nullptr, "a dead listener has a connection");
          usleep(100);
        }
        require(result == Result::kRemoteError, "connect returned " + std::to_string(static_cast<int>(result)));
        requireLogged({peer.substr(0, peer.find(" on ")), "127.0.0.1 port", "ended"});
      },
      [](Side& side) {
        (void)side.exchangeNames();
        Handle handle = {};
        (void)side.listen(handle);
        side.tell(handle);
        side.barrier();
        raise(SIGKILL);
      });
}

TEST_P(AgspeedNet, AConnectorKilledBeforeAcceptIsNamed) {
  expectBoth(
      [](Side& side) {
        (void)side.exchangeNames();
        Handle handle;
        side.hear(handle);
        (void)side.connect(handle);
        raise(SIGKILL);
      },
      [](Side& side) {
        const std::string peer = side.exchangeNames();
        Handle handle = {};
        void* listener = side.listen(handle);
        side.tell(handle);
        usleep(50000);
        void* comm = side.accept(listener);
        Bytes bytes(1000);
        Pending pending = side.receive(comm, {bytes});
        require(side.waitForFailure(pending) == Result::kRemoteError, "the failure is not the peer's");
        requireLogged({peer, "bytes"});
        requireOk(side.table().closeReceive(comm), "closeRecv");
        requireOk(side.table().closeListen(listener), "closeListen");
      });
}

TEST_P(AgspeedNet, AConnectionThatIsNotAcceptedEndsWithItsListener) {
  expectBoth(
      [](Side& side) {
        const std::string peer = side.exchangeNames();
        Handle handle;
        side.hear(handle);
        void* comm = side.connect(handle);
        Bytes bytes(300000);
        Pending pending = side.send(comm, bytes);
        side.barrier();
        side.waitForFailure(pending);
        requireLogged({peer, "closed"});
        requireOk(side.table().closeSend(comm), "closeSend");
      },
      [](Side& side) {
        (void)side.exchangeNames();
        Handle handle = {};
        void* listener = side.listen(handle);
        side.tell(handle);
        side.barrier();
        requireOk(side.table().closeListen(listener), "closeListen");
      });
}

TEST_P(AgspeedNet, APeerKilledInMidMessageIsNamedByItsSender) {
  expectBoth(
      [](Side& side) {
        const std::string peer = side.exchangeNames();
        void* comm = side.openSend();
        Bytes bytes(32 << 20);
        (void)side.send(comm, bytes);
        Pending pending = side.send(comm, bytes);  // never received, so that it cannot be done before the end
        side.barrier();
        require(side.waitForFailure(pending) == Result::kRemoteError, "the failure is not the peer's");
        requireLogged({peer, "bytes"});
        requireOk(side.table().closeSend(comm), "closeSend");
      },
      [](Side& side) {
        (void)side.exchangeNames();
        void* comm = side.openReceive();
        Bytes bytes(32 << 20);
        Pending pending = side.receive(comm, {bytes});
        side.barrier();
        (void)side.testFor(pending, milliseconds(2));
        raise(SIGKILL);
      });
}

TEST_P(AgspeedNet, AStoppedPeerIsNamedAfterThePeerTimeout) {
  setenv("AGSPEED_PEER_TIMEOUT_MS", "1500", 1);
  expectBoth(
      [](Side& side) {
        const std::string peer = side.exchangeNames();
        void* comm = side.openSend();
        Bytes bytes(100);
        Pending first = side.send(comm, bytes);
        side.wait(first);
        pid_t process = 0;
        side.hear(std::as_writable_bytes(std::span(&process, 1)));
        kill(process, SIGSTOP);
        Bytes large(8 << 20);
        Pending pending = side.send(comm, large);
        const Result result = side.waitForFailure(pending);
        kill(process, SIGKILL);
        require(result == Result::kRemoteError, "the failure is not the peer's");
        requireLogged({peer, "has not answered"});
        requireOk(side.table().closeSend(comm), "closeSend");
      },
      [](Side& side) {
        (void)side.exchangeNames();
        void* comm = side.openReceive();
        Bytes bytes(100);
        Pending pending = side.receive(comm, {bytes});
        side.wait(pending);
        const pid_t own = getpid();
        side.tell(std::as_bytes(std::span(&own, 1)));
        sleep(60);
      });
  unsetenv("AGSPEED_PEER_TIMEOUT_MS");
}

TEST_P(AgspeedNet, BothEndsOfALongerSendHearBothSizes) {
  expectBoth(
      [](Side& side) {
        void* comm = side.openSend();
        Bytes bytes(300000);
        Pending pending = side.send(comm, bytes);
        side.waitForFailure(pending);
        requireLogged({"300000", "200000"});
        side.barrier();
        requireOk(side.table().closeSend(comm), "closeSend");
      },
      [](Side& side) {
        void* comm = side.openReceive();
        Bytes bytes(200000);
        Pending pending = side.receive(comm, {bytes});
        side.waitForFailure(pending);
        requireLogged({"300000", "200000"});
        side.barrier();
        requireOk(side.table().closeReceive(comm), "closeRecv");
      });
}

TEST_P(AgspeedNet, AConnectionThatThePeerClosedFailsAndOthersGoOn) {
  expectBoth(
      [](Side& side) {
        (void)side.exchangeNames();
        Handle handle;
        side.hear(handle);
        void* closing = side.connect(handle);
        side.barrier();
        void* staying = side.connect(handle);
        side.barrier();
        requireOk(side.table().closeSend(closing), "closeSend");
        side.barrier();
        Bytes bytes = patternOf(3, 500000);
        Pending pending = side.send(staying, bytes);
        side.wait(pending);
        side.barrier();  // by now the receiver has closed
        Pending late = side.send(staying, bytes);
        side.waitForFailure(late);
        requireOk(side.table().closeSend(staying), "closeSend");
      },
      [](Side& side) {
        const std::string peer = side.exchangeNames();
        Handle handle = {};
        void* listener = side.listen(handle);
        side.tell(handle);
        void* closing = side.accept(listener);
        side.barrier();
        void* staying = side.accept(listener);
        Bytes unsent(1000), bytes(500000);
        Pending never = side.receive(closing, {unsent});
        side.barrier();
        side.waitForFailure(never);
        requireLogged({peer, "closed"});
        // A failed request does not occupy a place, so more than kMaxRequests of them can follow each other.
        for (int i = 0; i < 2 * kMaxRequests; ++i) side.waitForFailure(never = side.receive(closing, {unsent}));
        side.barrier();
        Pending pending = side.receive(staying, {bytes});
        side.wait(pending);
        require(bytes == patternOf(3, bytes.size()), "wrong bytes");
        requireOk(side.table().closeReceive(closing), "closeRecv");
        requireOk(side.table().closeReceive(staying), "closeRecv");
        requireOk(side.table().closeListen(listener), "closeListen");
        side.barrier();
      });
}

/// A random program of groups on several connections, made from one seed on both sides. Each thread has a connection.
TEST_P(AgspeedNet, RandomGroupsOfSeveralThreadsAgreeWithAModel) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  constexpr uint64_t kThreads = 3, kGroups = 40;
  static constexpr size_t kSizes[] = {0, 1, 100, 5000, 65536, 100000, 300001, 1048576};
  struct Plan {
    std::vector<int> tags;
    std::vector<size_t> sizes;
  };
  const auto planOf = [seed](uint64_t thread, uint64_t group) {
    std::mt19937_64 random(seed + thread * 1000 + group);
    Plan plan;
    plan.tags.resize(1 + random() % 8);
    for (size_t i = 0; i < plan.tags.size(); ++i) {
      plan.tags[i] = static_cast<int>(i * 3);
      plan.sizes.push_back(kSizes[random() % std::size(kSizes)]);
    }
    return plan;
  };
  const auto inThreads = [](const std::function<void(uint64_t)>& body) {
    std::vector<std::string> failures(kThreads);
    std::vector<std::thread> threads;
    for (uint64_t i = 0; i < kThreads; ++i) {
      threads.emplace_back([&failures, &body, i] {
        try {
          body(i);
        } catch (const std::exception& failure) {
          failures[i] = failure.what();
        }
      });
    }
    for (std::thread& each : threads) each.join();
    for (const std::string& each : failures) require(each.empty(), each);
  };
  expectBoth(
      [&](Side& side) {
        std::vector<void*> comms;
        for (uint64_t i = 0; i < kThreads; ++i) comms.push_back(side.openSend());
        inThreads([&](uint64_t thread) {
          for (uint64_t group = 0; group < kGroups; ++group) {
            const Plan plan = planOf(thread, group);
            std::vector<Bytes> bytes;
            std::vector<Pending> pending;
            for (size_t i = 0; i < plan.tags.size(); ++i) bytes.push_back(patternOf(group * 8 + i, plan.sizes[i]));
            for (size_t i = plan.tags.size(); i-- > 0;) {
              pending.push_back(side.send(comms[thread], bytes[i], plan.tags[i]));
            }
            side.wait(pending);
          }
        });
        side.barrier();
        for (void* comm : comms) requireOk(side.table().closeSend(comm), "closeSend");
      },
      [&](Side& side) {
        std::vector<void*> comms;
        for (uint64_t i = 0; i < kThreads; ++i) comms.push_back(side.openReceive());
        inThreads([&](uint64_t thread) {
          for (uint64_t group = 0; group < kGroups; ++group) {
            const Plan plan = planOf(thread, group);
            std::vector<Bytes> bytes;
            for (const size_t size : plan.sizes) bytes.emplace_back(size + group % 3 * 50000);
            Pending pending =
                side.receive(comms[thread], std::vector<std::span<std::byte>>(bytes.begin(), bytes.end()), plan.tags);
            side.wait(pending);
            for (size_t i = 0; i < bytes.size(); ++i) {
              require(pending.sizes[i] == static_cast<int>(plan.sizes[i]), "a wrong size");
              bytes[i].resize(plan.sizes[i]);
              require(bytes[i] == patternOf(group * 8 + i, plan.sizes[i]), "wrong bytes");
            }
          }
        });
        side.barrier();
        for (void* comm : comms) requireOk(side.table().closeReceive(comm), "closeRecv");
      });
}

TEST_P(AgspeedNet, CarriesMessagesInEveryModeAndOnSeveralConnectionsPerInterface) {
  for (const char* mode : {"integrity", "authenticated", "encrypted", "opportunistic"}) {
    SCOPED_TRACE(mode);
    setenv("AGSPEED_COMM_MODE", mode, 1);
    if (std::string(mode) == "opportunistic") {
      unsetenv("AGSPEED_JOB_KEY");
    } else {
      setenv("AGSPEED_JOB_KEY", "a key that only this test has", 1);
    }
    setenv("AGSPEED_FLOWS_PER_INTERFACE", "3", 1);
    expectBoth(
        [](Side& side) {
          void* comm = side.openSend();
          for (const size_t size : {100, 70000, 100000, 3000000}) {
            Bytes bytes = patternOf(size, size);
            Pending pending = side.send(comm, bytes);
            side.wait(pending);
          }
          side.barrier();
          requireOk(side.table().closeSend(comm), "closeSend");
        },
        [](Side& side) {
          void* comm = side.openReceive();
          for (const size_t size : {100, 70000, 100000, 3000000}) {
            Bytes bytes(size);
            Pending pending = side.receive(comm, {bytes});
            side.wait(pending);
            require(bytes == patternOf(size, size), "wrong bytes");
          }
          side.barrier();
          requireOk(side.table().closeReceive(comm), "closeRecv");
        });
  }
  for (const char* name : {"AGSPEED_COMM_MODE", "AGSPEED_JOB_KEY", "AGSPEED_FLOWS_PER_INTERFACE"}) unsetenv(name);
}

TEST_P(AgspeedNet, ADeviceMayBeAnInterface) {
  setenv("AGSPEED_NCCL_DEVICES", "nic", 1);
  expectOne([](NetTable& table) {
    int count = 0;
    requireOk(table.devices(count), "devices");
    DeviceProperties properties;
    requireOk(table.properties(0, properties), "getProperties");
    require(count == 1 && properties.name == "lo", "the device is " + properties.name);
    require(table.properties(1, properties) != Result::kOk, "there is a device 1");
  });
  unsetenv("AGSPEED_NCCL_DEVICES");
}

TEST_P(AgspeedNet, FinalizeEndsWorkInFlight) {
  if (GetParam().version < 11) GTEST_SKIP() << "tables before v11 have no finalize";
  expectBoth(
      [](Side& side) {
        void* comm = side.openSend();
        Bytes bytes = patternOf(1, 8000000);
        (void)side.send(comm, bytes);
        side.barrier();
        requireOk(side.table().finalize(), "finalize");
        std::fill(bytes.begin(), bytes.end(), std::byte{0});
        requireOk(side.table().init(), "init again");
      },
      [](Side& side) {
        void* comm = side.openReceive();
        Bytes bytes(100), later(100);
        side.barrier();
        Pending pending = side.receive(comm, {bytes});
        side.waitForFailure(pending);
        Pending after = side.receive(comm, {later});
        side.waitForFailure(after);
        requireOk(side.table().closeReceive(comm), "closeRecv");
      });
}

TEST_P(AgspeedNet, TheLogSaysWhatInterfacesCarried) {
  if (GetParam().version < 11) GTEST_SKIP() << "tables before v11 have no finalize";
  expectBoth(
      [](Side& side) {
        void* comm = side.openSend();
        Bytes bytes = patternOf(1, 3000000);
        Pending pending = side.send(comm, bytes);
        side.wait(pending);
        side.barrier();
        requireOk(side.table().closeSend(comm), "closeSend");
        requireOk(side.table().finalize(), "finalize");
        requireLogged({"NET/agspeed : lo: 3000000 bytes sent, 0 received, 0 connections lost"});
        requireOk(side.table().init(), "init again");
      },
      [](Side& side) {
        void* comm = side.openReceive();
        Bytes bytes(3000000);
        Pending pending = side.receive(comm, {bytes});
        side.wait(pending);
        side.barrier();
        requireOk(side.table().closeReceive(comm), "closeRecv");
        requireOk(side.table().finalize(), "finalize");
        requireLogged({"NET/agspeed : lo: 0 bytes sent, 3000000 received, 0 connections lost"});
        requireOk(side.table().init(), "init again");
      });
}

TEST_P(AgspeedNet, AChildForkedAfterInitIsRefused) {
  expectOne([](NetTable& table) {
    const pid_t child = fork();
    if (child == 0) {
      Handle handle = {};
      void* listener = nullptr;
      std::exit(table.listen(0, handle, listener) == Result::kInvalidArgument ? 0 : 1);
    }
    int status = -1;
    require(waitpid(child, &status, 0) == child && status == 0, "the child was not refused");
  });
}

TEST_P(AgspeedNet, InitFailsWhereNoInterfaceIsUsable) {
  setenv("AGSPEED_SOCKET_IFNAME", "=nosuch0", 1);
  const std::string failure = runOne(GetParam(), [](NetTable&) {});
  unsetenv("AGSPEED_SOCKET_IFNAME");
  EXPECT_NE(failure.find("init returned"), std::string::npos) << failure;
  EXPECT_NE(failure.find("nosuch0"), std::string::npos) << failure;
}

INSTANTIATE_TEST_SUITE_P(Tables, AgspeedNet, testing::Values(ourTable(6), ourTable(9), ourTable(11), ourTable(12)),
                         [](const auto& info) { return info.param.label; });

}  // namespace
}  // namespace agspeed::comm::nccl

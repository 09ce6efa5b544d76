// SPDX-License-Identifier: Apache-2.0
// Invalid input and input at the limits of our network tables. Each is refused with a sentence or handled completely,
// and none causes a hang.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "comm/channel/ticket.h"
#include "tests/comm/nccl_net/process_pair.h"
#include "tests/comm/nccl_net/sources.h"

namespace agspeed::comm::nccl {
namespace {

using std::chrono::milliseconds;
using Bytes = std::vector<std::byte>;

/// Stops a process. A thread that runs on another processor goes on for a moment after the signal, so this waits until
/// all threads are stopped.
void stop(pid_t process) {
  kill(process, SIGSTOP);
  for (bool isStopped = false; !isStopped; usleep(1000)) {
    isStopped = true;
    for (const auto& thread : std::filesystem::directory_iterator("/proc/" + std::to_string(process) + "/task")) {
      std::ifstream file(thread.path() / "stat");
      const std::string stat{std::istreambuf_iterator<char>(file), {}};
      isStopped = isStopped && stat.find(") T ") != std::string::npos;
    }
  }
}

class BadInput : public testing::TestWithParam<TableSource> {
 protected:
  void expectBoth(const SideBody& sender, const SideBody& receiver) {
    EXPECT_EQ(runTwo(GetParam(), sender, receiver), "");
  }
  void expectOne(const std::function<void(NetTable&)>& body) { EXPECT_EQ(runOne(GetParam(), body), ""); }
};

TEST_P(BadInput, ATicketOfAnotherModeIsRefused) {
  expectOne([](NetTable& table) {
    Handle handle = {};
    void *listener = nullptr, *comm = nullptr;
    requireOk(table.listen(0, handle, listener), "listen");
    channel::Ticket ticket = channel::Ticket::decode(handle, {}).value();
    ticket.protection = security::Protection::kIntegrity;
    ticket.encode({}, handle);
    require(table.connect(0, handle, comm) != Result::kOk && comm == nullptr, "another mode was taken");
    requireLogged({"integrity", "AGSPEED_COMM_MODE"});
    requireOk(table.closeListen(listener), "closeListen");
  });
}

/// Calls connect with this handle until there is a channel.
void* connected(NetTable& table, Handle& handle) {
  void* comm = nullptr;
  for (int i = 0; comm == nullptr && i < 10000; ++i, usleep(1000)) requireOk(table.connect(0, handle, comm), "connect");
  require(comm != nullptr, "connect has not ended");
  return comm;
}

TEST_P(BadInput, ATicketWithTheNoteOfAnotherConnectGoesToItsOwnListener) {
  constexpr size_t kNoteAt = 120;
  expectBoth(
      [](Side& side) {
        std::array<Handle, 2> handles;
        for (Handle& handle : handles) side.hear(handle);
        void* comm = nullptr;
        requireOk(side.table().connect(0, handles[0], comm), "connect");
        require(comm == nullptr, "connect has ended at its first call");
        std::copy(handles[0].begin() + kNoteAt, handles[0].end(), handles[1].begin() + kNoteAt);
        void* const second = connected(side.table(), handles[1]);
        void* const first = connected(side.table(), handles[0]);
        Bytes message(10, std::byte{2});
        Pending pending = side.send(second, message);
        side.wait(pending);
        side.barrier();
        for (void* each : {first, second}) requireOk(side.table().closeSend(each), "closeSend");
      },
      [](Side& side) {
        std::array<Handle, 2> handles = {};
        std::array<void*, 2> listeners = {side.listen(handles[0]), side.listen(handles[1])};
        for (const Handle& handle : handles) side.tell(handle);
        void* const second = side.accept(listeners[1]);
        void* const first = side.accept(listeners[0]);
        Bytes target(10);
        Pending pending = side.receive(second, {target});
        side.wait(pending);
        require(target == Bytes(10, std::byte{2}), "the second listener got other bytes");
        side.barrier();
        for (void* each : {first, second}) requireOk(side.table().closeReceive(each), "closeRecv");
        for (void* each : listeners) requireOk(side.table().closeListen(each), "closeListen");
      });
}

TEST_P(BadInput, AMessageBeyondAnIntIsRefused) {
  if (GetParam().version < 9) GTEST_SKIP() << "tables before v9 count bytes by int";
  expectBoth(
      [](Side& side) {
        void* comm = side.openSend();
        Bytes bytes(1);
        void* request = nullptr;
        const std::span<std::byte> claimed(bytes.data(), size_t{1} << 31);  // refused before it is read
        require(side.table().send(comm, claimed, 0, nullptr, request) == Result::kInvalidArgument, "2 GiB were taken");
        require(request == nullptr, "2 GiB have a request");
        requireLogged({"2147483648 bytes", "2147483647"});
        side.barrier();
        requireOk(side.table().closeSend(comm), "closeSend");
      },
      [](Side& side) {
        void* comm = side.openReceive();
        side.barrier();
        requireOk(side.table().closeReceive(comm), "closeRecv");
      });
}

/// Memory that takes no pages until it is written to.
std::span<std::byte> mapped(size_t size) {
  void* at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  require(at != MAP_FAILED, "mmap");
  return {static_cast<std::byte*>(at), size};
}

TEST_P(BadInput, AGibibyteAndAByteArrive) {
  if (GetParam().version != 11) GTEST_SKIP() << "once is enough";
  constexpr size_t kSize = (size_t{1} << 30) + 1, kStride = 1234567;
  expectBoth(
      [](Side& side) {
        void* comm = side.openSend();
        const std::span<std::byte> bytes = mapped(kSize);
        for (size_t at = 0; at < kSize; at += kStride) bytes[at] = static_cast<std::byte>(at % 251 + 1);
        bytes.back() = std::byte{77};
        Pending pending = side.send(comm, bytes);
        side.wait(pending);
        side.barrier();
        requireOk(side.table().closeSend(comm), "closeSend");
      },
      [](Side& side) {
        void* comm = side.openReceive();
        const std::span<std::byte> bytes = mapped(kSize);
        Pending pending = side.receive(comm, {bytes});
        side.wait(pending);
        require(pending.sizes[0] == static_cast<int>(kSize), "its size is " + std::to_string(pending.sizes[0]));
        for (size_t at = 0; at < kSize; at += kStride) {
          require(bytes[at] == static_cast<std::byte>(at % 251 + 1), "a wrong byte at " + std::to_string(at));
        }
        require(bytes.back() == std::byte{77}, "the last byte is wrong");
        side.barrier();
        requireOk(side.table().closeReceive(comm), "closeRecv");
      });
}

TEST_P(BadInput, InitOfASecondUserSharesTheFirst) {
  if (GetParam().version < 11) GTEST_SKIP() << "tables before v11 have no finalize";
  const auto join = [](Side& side) {
    requireOk(side.table().init(), "init by a second communicator");
    requireOk(side.table().finalize(), "finalize of one");
  };
  expectBoth(
      [&](Side& side) {
        join(side);
        void* comm = side.openSend();
        Bytes bytes = patternOf(4, 200000);
        Pending pending = side.send(comm, bytes);
        side.wait(pending);
        side.barrier();
        requireOk(side.table().closeSend(comm), "closeSend");
      },
      [&](Side& side) {
        join(side);
        void* comm = side.openReceive();
        Bytes bytes(200000);
        Pending pending = side.receive(comm, {bytes});
        side.wait(pending);
        require(bytes == patternOf(4, bytes.size()), "wrong bytes");
        side.barrier();
        requireOk(side.table().closeReceive(comm), "closeRecv");
      });
}

TEST_P(BadInput, AStoppedListenerIsNamedAfterThePeerTimeout) {
  setenv("AGSPEED_PEER_TIMEOUT_MS", "1500", 1);
  expectBoth(
      [](Side& side) {
        const std::string peer = side.exchangeNames();
        Handle handle;
        side.hear(handle);
        pid_t process = 0;
        side.hear(std::as_writable_bytes(std::span(&process, 1)));
        stop(process);
        void* comm = nullptr;
        Result result = Result::kOk;
        for (int i = 0; i < 100000 && result == Result::kOk && comm == nullptr; ++i) {
          result = side.table().connect(0, handle, comm);
          usleep(100);
        }
        kill(process, SIGKILL);
        require(comm == nullptr, "a stopped listener has a connection");
        require(result == Result::kRemoteError, "connect returned " + std::to_string(static_cast<int>(result)));
        requireLogged({peer.substr(0, peer.find(" on ")), "127.0.0.1"});
      },
      [](Side& side) {
        (void)side.exchangeNames();
        Handle handle = {};
        (void)side.listen(handle);
        side.tell(handle);
        const pid_t own = getpid();
        side.tell(std::as_bytes(std::span(&own, 1)));
        sleep(60);
      });
  unsetenv("AGSPEED_PEER_TIMEOUT_MS");
}

TEST_P(BadInput, AConnectorKilledWhileItConnectsDelaysNoOther) {
  expectBoth(
      [](Side& side) {
        Handle handle;
        side.hear(handle);
        void* comm = nullptr;
        for (int i = 0; i < 3; ++i) requireOk(side.table().connect(0, handle, comm), "connect");
        raise(SIGKILL);
      },
      [](Side& side) {
        Handle handle = {};
        void* listener = side.listen(handle);
        side.tell(handle);
        const auto limit = std::chrono::steady_clock::now() + milliseconds(300);
        void* comm = nullptr;
        while (comm == nullptr && std::chrono::steady_clock::now() < limit) {
          requireOk(side.table().accept(listener, comm), "accept");
        }
        if (comm != nullptr) {  // its hello had arrived completely
          Bytes bytes(1000);
          Pending pending = side.receive(comm, {bytes});
          require(side.waitForFailure(pending) == Result::kRemoteError, "the failure is not the peer's");
          requireOk(side.table().closeReceive(comm), "closeRecv");
        }
        requireOk(side.table().closeListen(listener), "closeListen");
      });
}

INSTANTIATE_TEST_SUITE_P(Tables, BadInput, testing::Values(ourTable(6), ourTable(11)),
                         [](const auto& info) { return info.param.label; });

}  // namespace
}  // namespace agspeed::comm::nccl

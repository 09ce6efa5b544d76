// SPDX-License-Identifier: Apache-2.0
// A kernel that drops large packets for a while, like a path that fails when it is first used, or like one that carries
// only small packets.
#include <linux/filter.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/comm/network/network_group.h"

namespace agspeed::comm::network {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
using testing::Not;

/// Returns the socket of this process that listens at the address.
int listenerAt(const rendezvous::RailAddress& address) {
  for (int descriptor = 0; descriptor < 4096; ++descriptor) {
    sockaddr_in at = {};
    int listens = 0;
    socklen_t size = sizeof(listens), addressSize = sizeof(at);
    if (getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0) continue;
    getsockname(descriptor, reinterpret_cast<sockaddr*>(&at), &addressSize);
    if (at.sin_family == AF_INET && ntohs(at.sin_port) == address.port) return descriptor;
  }
  return -1;
}

/// While it lives, the listener's new connections lose all packets of more than `kMost` bytes, permanently.
class LargePacketFilter {
 public:
  explicit LargePacketFilter(int listener) : listener_(listener) {
    std::array code = {sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_LEN, 0),
                       sock_filter BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, kMost, 0, 1),
                       sock_filter BPF_STMT(BPF_RET | BPF_K, 0), sock_filter BPF_STMT(BPF_RET | BPF_K, UINT32_MAX)};
    const sock_fprog program = {code.size(), code.data()};
    EXPECT_EQ(setsockopt(listener_, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)), 0);
  }
  ~LargePacketFilter() {
    const int unused = 0;
    EXPECT_EQ(setsockopt(listener_, SOL_SOCKET, SO_DETACH_FILTER, &unused, sizeof(unused)), 0);
  }
  LargePacketFilter(const LargePacketFilter&) = delete;

 private:
  static constexpr uint32_t kMost = 2000;
  const int listener_;
};

TEST(SmallPackets, AreNotUsedWhenOneConnectionWasCutAtItsFirstLargeFrame) {
  NetworkGroup group(2, 1);
  Parcel send(1, {9, 9, 9}, 4 << 20), receive(0, {9, 9, 9}, 4 << 20);
  group[1].receive(receive);
  group[0].send(send);
  testing::internal::CaptureStderr();
  {
    const LargePacketFilter filter(listenerAt(group[1].rails().front()));
    EXPECT_TRUE(group.drive([&] { return group[0].counters().rails[0].numLosses > 0; }));
  }
  EXPECT_TRUE(group.drive([&] { return receive.numFinished > 0; }));
  group.drive([] { return false; }, milliseconds(1200));  // until connections count as stable
  EXPECT_THAT(testing::internal::GetCapturedStderr(), Not(HasSubstr("large packets seem to be lost")));
}

}  // namespace
}  // namespace agspeed::comm::network

// SPDX-License-Identifier: Apache-2.0
#include "comm/transport/tcp/socket.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <string>

namespace agspeed::comm::tcp {
namespace {

std::string congestionControlOf(const Socket& socket) {
  std::array<char, 16> name = {};
  socklen_t size = name.size() - 1;
  getsockopt(socket.descriptor(), IPPROTO_TCP, TCP_CONGESTION, name.data(), &size);
  return name.data();
}

bool choose(const Socket& socket, const std::string& name) {
  return setsockopt(socket.descriptor(), IPPROTO_TCP, TCP_CONGESTION, name.data(),
                    static_cast<socklen_t>(name.size())) == 0;
}

TEST(Socket, AConnectionDoesNotBeginWithBbr) {
  // A connection that begins with BBR is paced as long as it exists. The pace follows from its first round trip, which
  // may include a second of address resolution.
  rendezvous::RailAddress address;
  address.address = topology::parseIpAddress("127.0.0.1").value();
  const StatusOr<Socket> listener = Socket::listen(address);
  ASSERT_TRUE(listener.hasValue()) << listener.status().toString();
  const StatusOr<Socket> connecting = Socket::connect(address.address, "", address);
  ASSERT_TRUE(connecting.hasValue()) << connecting.status().toString();
  EXPECT_NE(congestionControlOf(*connecting), "bbr");
}

TEST(Socket, InPlaceOfBbrAnotherCongestionControlIsTaken) {
  const Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!choose(socket, "bbr")) GTEST_SKIP() << "this kernel does not offer BBR to this process";
  socket.avoidBbr();
  EXPECT_NE(congestionControlOf(socket), "bbr");
}

TEST(Socket, OtherCongestionControlIsKept) {
  const Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_TRUE(choose(socket, "reno")) << "every kernel has reno";
  socket.avoidBbr();
  EXPECT_EQ(congestionControlOf(socket), "reno");
}

TEST(Socket, ALimitOfWhatTheKernelHoldsCanBeLifted) {
  const Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto option = [&](int name) {
    int value = -1;
    socklen_t size = sizeof value;
    getsockopt(socket.descriptor(), SOL_SOCKET, name, &value, &size);
    return value;
  };
  if (option(SO_BUF_LOCK) < 0) GTEST_SKIP() << "this kernel (before Linux 5.15) cannot lift such limits";
  const int before = option(SO_SNDBUF);
  socket.setSendBuffer(before / 2);
  EXPECT_EQ(option(SO_SNDBUF), before / 2);
  EXPECT_NE(option(SO_BUF_LOCK), 0);
  socket.setSendBuffer(0);
  EXPECT_EQ(option(SO_BUF_LOCK), 0) << "the kernel may give it more again";
}

}  // namespace
}  // namespace agspeed::comm::tcp

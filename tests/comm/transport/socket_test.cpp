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

TEST(Socket, PreparedForFramesItDoesNotPaceByBbr) {
  const Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!choose(socket, "bbr")) GTEST_SKIP() << "this kernel does not offer BBR to this process";
  socket.prepare();
  EXPECT_NE(congestionControlOf(socket), "bbr");
}

TEST(Socket, PreparedForFramesItKeepsOtherCongestionControl) {
  const Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_TRUE(choose(socket, "reno")) << "every kernel has reno";
  socket.prepare();
  EXPECT_EQ(congestionControlOf(socket), "reno");
}

}  // namespace
}  // namespace agspeed::comm::tcp

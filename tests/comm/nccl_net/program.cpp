// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/nccl_net/program.h"

#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "tests/comm/nccl_net/process_pair.h"

namespace agspeed::comm::nccl {
namespace {

using Time = std::chrono::steady_clock;
constexpr int kTimeoutMs = 20000;

sockaddr_un addressOf(const std::string& path, size_t rank) {
  const std::string text = path + "." + std::to_string(rank);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  require(text.size() < sizeof(address.sun_path), "the path of the socket is too long: " + text);
  std::copy(text.begin(), text.end(), address.sun_path);
  return address;
}

int comeTo(const std::string& path, size_t host, size_t rank) {
  const sockaddr_un address = addressOf(path, host);
  const int end = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const Time::time_point limit = Time::now() + std::chrono::milliseconds(kTimeoutMs);
  while (connect(end, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    require(Time::now() < limit, "no process listens at " + std::string(address.sun_path));
    usleep(1000);
  }
  require(write(end, &rank, sizeof(rank)) == sizeof(rank), "the other side is gone");
  return end;
}

}  // namespace

std::vector<int> connectAll(const std::string& path, size_t rank, size_t size) {
  const sockaddr_un own = addressOf(path, rank);
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  require(bind(listener, reinterpret_cast<const sockaddr*>(&own), sizeof(own)) == 0 &&
              listen(listener, static_cast<int>(size)) == 0,
          "cannot listen at " + std::string(own.sun_path));
  std::vector<int> sockets(size, -1);
  for (size_t peer = 0; peer < rank; ++peer) sockets[peer] = comeTo(path, peer, rank);
  for (size_t i = rank + 1; i < size; ++i) {
    pollfd waiting = {listener, POLLIN, 0};
    require(poll(&waiting, 1, kTimeoutMs) == 1, "not all have come to " + std::string(own.sun_path));
    const int end = accept(listener, nullptr, nullptr);
    size_t peer = 0;
    require(read(end, &peer, sizeof(peer)) == sizeof(peer) && peer > rank && peer < size, "a peer without a rank");
    sockets[peer] = end;
  }
  close(listener);
  return sockets;
}

double processorSeconds() {
  rusage usage = {};
  (void)getrusage(RUSAGE_SELF, &usage);
  const auto inSeconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return inSeconds(usage.ru_utime) + inSeconds(usage.ru_stime);
}

}  // namespace agspeed::comm::nccl

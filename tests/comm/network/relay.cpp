// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/network/relay.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>

#include "runtime/base/check.h"

namespace agspeed::comm::network {
namespace {

sockaddr_in toSocketAddress(const rendezvous::RailAddress& rail) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(rail.port);
  std::memcpy(&address.sin_addr, rail.address.bytes.data(), 4);
  return address;
}

}  // namespace

Relay::Relay(const rendezvous::RailAddress& target, const RelayFaults& faults, RelayCounts& counts)
    : target_(target), address_(target), faults_(faults), counts_(counts), random_(faults.seed) {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  address_.port = 0;
  sockaddr_in at = toSocketAddress(address_);
  socklen_t size = sizeof(at);
  AG_CHECK(bind(listener_, reinterpret_cast<sockaddr*>(&at), size) == 0 && listen(listener_, 64) == 0 &&
               getsockname(listener_, reinterpret_cast<sockaddr*>(&at), &size) == 0,
           std::strerror(errno));
  address_.port = ntohs(at.sin_port);
  thread_ = std::thread([this] { run(); });
}

Relay::~Relay() {
  isStopped_ = true;
  thread_.join();
  for (const Pair& pair : pairs_) {
    close(pair.near);
    close(pair.far);
  }
  close(listener_);
}

void Relay::run() {
  while (!isStopped_) {
    std::vector<pollfd> waits = {{listener_, POLLIN, 0}};
    for (const Pair& pair : pairs_) {
      waits.push_back({pair.near, POLLIN, 0});
      waits.push_back({pair.far, POLLIN, 0});
    }
    if (poll(waits.data(), waits.size(), 5) < 0) continue;
    std::vector<Pair> left;
    for (size_t i = 0; i < pairs_.size(); ++i) {
      const Pair pair = pairs_[i];
      const bool isFine = isOpen_ && (waits[1 + 2 * i].revents == 0 || forward(pair.near, pair.far)) &&
                          (waits[2 + 2 * i].revents == 0 || forward(pair.far, pair.near));
      if (isFine) {
        left.push_back(pair);
        continue;
      }
      close(pair.near);
      close(pair.far);
    }
    pairs_ = std::move(left);
    if (waits[0].revents != 0) acceptOne();
  }
}

void Relay::acceptOne() {
  const int near = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
  const int far = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in to = toSocketAddress(target_);
  if (isOpen_ && near >= 0 && connect(far, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0) {
    const int one = 1;
    setsockopt(near, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    setsockopt(far, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    pairs_.push_back({near, far});
    return;
  }
  close(near);
  close(far);
}

bool Relay::happens(double bytesPerFault, size_t numBytes) {
  if (bytesPerFault <= 0) return false;
  return std::uniform_real_distribution<>()(random_) < static_cast<double>(numBytes) / bytesPerFault;
}

bool Relay::forward(int from, int to) {
  if (isSlow_) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  std::array<char, 16384> buffer;
  const ssize_t size = recv(from, buffer.data(), buffer.size(), 0);
  if (size <= 0) return false;
  auto numBytes = static_cast<size_t>(size);
  const bool isCut = happens(faults_.bytesPerCut, numBytes);
  if (happens(faults_.bytesPerFlip, numBytes)) {
    ++counts_.numFlips;
    buffer[random_() % numBytes] ^= static_cast<char>(1 << random_() % 8);
  }
  if (isCut) {
    ++counts_.numCuts;
    numBytes = random_() % numBytes;
  }
  int numCopies = 1;
  if (happens(faults_.bytesPerRepeat, numBytes)) {
    ++counts_.numRepeats;
    ++numCopies;
  }
  for (int copy = 0; copy < numCopies; ++copy) {
    if (send(to, buffer.data(), numBytes, MSG_NOSIGNAL) != static_cast<ssize_t>(numBytes)) return false;
  }
  return !isCut;
}

Status RelayStore::set(const std::string& key, const std::string& value) {
  AG_ASSIGN_OR_RETURN(rendezvous::PeerRecord record, rendezvous::decodePeerRecord(value, key_));
  for (size_t rail = 0; rail < record.rails.size(); ++rail) {
    RelayFaults faults = faults_;
    faults.seed += 100 * record.rank + rail;
    auto relay = std::make_unique<Relay>(record.rails[rail], faults, counts_);
    record.rails[rail] = relay->address();
    relays_[{static_cast<int>(record.rank), static_cast<int>(rail)}] = std::move(relay);
  }
  return store_.set(key, encodePeerRecord(record, key_));
}

}  // namespace agspeed::comm::network

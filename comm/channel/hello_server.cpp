// SPDX-License-Identifier: Apache-2.0
#include "comm/channel/hello_server.h"

#include <cerrno>
#include <chrono>
#include <optional>
#include <utility>

namespace agspeed::comm::channel {
namespace {

constexpr rendezvous::PendingLimits kLimits = {256, kMaxHelloBytes, std::chrono::seconds(3)};
constexpr int kMaxAcceptsAtOnce = 64;

}  // namespace

/// A socket that listens at one address.
struct HelloServer::ListeningSocket final : io::Poller::Handler {
  ListeningSocket(HelloServer& owner, tcp::Socket tcpSocket)
      : server(owner), socket(std::move(tcpSocket)), pausable(owner.poller_, socket.descriptor(), *this) {}
  void ready(uint32_t) override { server.accept(*this); }

  HelloServer& server;
  tcp::Socket socket;
  io::PausableListener pausable;
};

HelloServer::HelloServer(io::Poller& poller, ControlLine::Owner& owner)
    : poller_(poller), owner_(owner), pending_(kLimits) {}

StatusOr<std::unique_ptr<HelloServer>> HelloServer::open(io::Poller& poller,
                                                         const std::vector<topology::Interface>& interfaces,
                                                         ControlLine::Owner& owner) {
  std::unique_ptr<HelloServer> server(new HelloServer(poller, owner));
  for (const topology::Interface& each : interfaces) {
    rendezvous::RailAddress address = {each.address, static_cast<uint8_t>(each.prefixBits), 0};
    AG_ASSIGN_OR_RETURN(tcp::Socket socket, tcp::Socket::listen(address));
    server->addresses_.push_back(address);
    server->sockets_.push_back(std::make_unique<ListeningSocket>(*server, std::move(socket)));
  }
  return server;
}

HelloServer::~HelloServer() = default;

void HelloServer::accept(ListeningSocket& listening) {
  for (int i = 0; i < kMaxAcceptsAtOnce; ++i) {
    std::optional<tcp::Socket> socket = listening.socket.accept();
    if (!socket) {
      listening.pausable.failed(errno);
      break;
    }
    (void)pending_.add(std::make_unique<ControlLine>(poller_, std::move(*socket), pending_.limits().numBytes, owner_));
  }
  owner_.lineChanged();
}

std::vector<HelloServer::Caller> HelloServer::takeCallers(io::Clock::time_point now) {
  for (const auto& listening : sockets_) listening->pausable.resume();
  std::vector<Caller> callers;
  pending_.forEach([&](ControlLine& line) {
    std::optional<std::vector<std::byte>> hello = line.receive();
    if (hello) {
      callers.push_back({pending_.take(line), std::move(*hello)});
    } else if (!line.isOpen() || !mayBeHello(line.begun())) {
      (void)pending_.take(line);
    }
  });
  (void)pending_.takeLate(now);
  return callers;
}

}  // namespace agspeed::comm::channel

// SPDX-License-Identifier: Apache-2.0
#include "comm/transport/shm/acceptor.h"

#include <sys/epoll.h>

#include <array>
#include <cerrno>
#include <utility>
#include <vector>

#include "comm/transport/shm/ring.h"

namespace agspeed::comm::shm {
namespace {

constexpr size_t kHandedOver = 3;  ///< descriptors of the ring, of the flag's memory, and of the eventfd

}  // namespace

/// A connection whose handshake is in progress.
struct Acceptor::Pending final : transport::HandshakeServer::Connection, io::Poller::Handler {
  Pending(Acceptor& owner, io::FileDescriptor connection, Process from)
      : acceptor(owner),
        socket(std::move(connection)),
        process(from),
        pollId(owner.poller_.add(socket.get(), EPOLLIN, *this)) {}
  ~Pending() override {
    if (socket.isOpen()) stopPolling();
  }

  void ready(uint32_t) override { acceptor.server_.read(*this); }
  std::optional<size_t> read(std::span<std::byte> target) override;
  bool reply(const wire::ReplyBytes& reply) override {
    return sendMessage(socket, reply, std::array{acceptor.bell_.page(), acceptor.bell_.bell()});
  }
  Status accept(int peer, const wire::Responder& responder) override;
  void stopPolling() { acceptor.poller_.remove(pollId, socket.get()); }

  Acceptor& acceptor;
  io::FileDescriptor socket;
  const Process process;
  const io::Poller::Id pollId;
  std::vector<io::FileDescriptor> handedOver;  ///< descriptors that came with the request
};

std::optional<size_t> Acceptor::Pending::read(std::span<std::byte> target) {
  Received received = receiveMessage(socket, target);
  if (received.outcome == Received::Outcome::kNothingYet) return 0;
  if (received.outcome == Received::Outcome::kClosed || target.empty()) return std::nullopt;
  if (handedOver.empty()) {
    if (received.descriptors.size() != kHandedOver) return std::nullopt;
    handedOver = std::move(received.descriptors);
  }
  return target.size();
}

Status Acceptor::Pending::accept(int peer, const wire::Responder&) {
  AG_ASSIGN_OR_RETURN(SharedMemory ring, SharedMemory::open(handedOver[0], sizeof(Ring)));
  AG_ASSIGN_OR_RETURN(Doorbell bell, Doorbell::open(handedOver[1], std::move(handedOver[2])));
  stopPolling();
  acceptor.owner_.accepted(peer, {std::move(socket), process, std::move(ring), std::move(bell)});
  return {};
}

Acceptor::Acceptor(io::Poller& poller, io::FileDescriptor listener, rendezvous::Directory& directory,
                   const Doorbell& bell, Owner& owner)
    : poller_(poller),
      bell_(bell),
      owner_(owner),
      listener_(std::move(listener)),
      pausable_(poller, listener_.get(), *this),
      server_(transport::HandshakeServer::localLimits(static_cast<size_t>(directory.options().size)), directory,
              "a connection through shared memory") {}

void Acceptor::ready(uint32_t) {
  for (int i = 0; i < transport::HandshakeServer::kMaxAcceptsAtOnce; ++i) {
    io::FileDescriptor socket = acceptAt(listener_);
    if (!socket.isOpen()) return pausable_.failed(errno);
    const std::optional<Process> process = trustedProcessAt(socket);
    if (process) server_.add(std::make_unique<Pending>(*this, std::move(socket), *process));
  }
}

void Acceptor::expire(io::Clock::time_point now) {
  pausable_.resume();
  (void)server_.expire(now);
}

}  // namespace agspeed::comm::shm

// SPDX-License-Identifier: Apache-2.0
#include "comm/transport/tcp/acceptor.h"

#include <sys/epoll.h>

#include <cerrno>
#include <utility>

namespace agspeed::comm::tcp {

/// A connection whose handshake is in progress.
struct Acceptor::Pending final : transport::HandshakeServer::Connection, io::Poller::Handler {
  Pending(Acceptor& owner, Socket connection)
      : acceptor(owner),
        socket(std::move(connection)),
        pollId(owner.poller_.add(socket.descriptor(), EPOLLIN, *this)) {}
  ~Pending() override {
    if (socket.isOpen()) stopPolling();
  }

  void ready(uint32_t) override { acceptor.server_.read(*this); }
  std::optional<size_t> read(std::span<std::byte> target) override {
    const iovec part = {target.data(), target.size()};
    const Moved moved = socket.read(std::span(&part, 1));
    return moved.isOpen ? std::optional(moved.numBytes) : std::nullopt;
  }
  bool reply(const wire::ReplyBytes& reply) override {
    const iovec part = {const_cast<std::byte*>(reply.data()), reply.size()};
    return socket.write(std::span(&part, 1)).numBytes == reply.size();
  }
  Status accept(int peer, const wire::Responder& responder) override {
    stopPolling();
    socket.prepare();
    acceptor.owner_.accepted(peer, std::move(socket), security::Opener(acceptor.protection_, responder.frameKey()));
    return {};
  }
  void stopPolling() { acceptor.poller_.remove(pollId, socket.descriptor()); }

  Acceptor& acceptor;
  Socket socket;
  const io::Poller::Id pollId;
};

Acceptor::Acceptor(io::Poller& poller, Socket listener, size_t numRails, rendezvous::Directory& directory, Owner& owner)
    : poller_(poller),
      protection_(directory.options().protection),
      owner_(owner),
      listener_(std::move(listener)),
      pausable_(poller, listener_.descriptor(), *this),
      server_(transport::HandshakeServer::networkLimits(numRails, static_cast<size_t>(directory.options().size)),
              directory, "a connection") {}

void Acceptor::ready(uint32_t) {
  for (int i = 0; i < transport::HandshakeServer::kMaxAcceptsAtOnce; ++i) {
    std::optional<Socket> socket = listener_.accept();
    if (!socket) return pausable_.failed(errno);
    server_.add(std::make_unique<Pending>(*this, std::move(*socket)));
  }
}

io::Clock::time_point Acceptor::expire(io::Clock::time_point now) {
  pausable_.resume();
  return server_.expire(now);
}

}  // namespace agspeed::comm::tcp

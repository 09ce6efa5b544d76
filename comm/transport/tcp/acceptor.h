// SPDX-License-Identifier: Apache-2.0
// Acceptor: the listener of a rail. It accepts connections and hands authenticated ones to its owner. The handshake
// server authenticates connections and limits their number. Owned by the rail; one thread.
#pragma once

#include "comm/io/pausable_listener.h"
#include "comm/io/poller.h"
#include "comm/rendezvous/directory.h"
#include "comm/security/sealing.h"
#include "comm/transport/handshake_server.h"
#include "comm/transport/tcp/socket.h"

namespace agspeed::comm::tcp {

class Acceptor final : public io::Poller::Handler {
 public:
  class Owner {
   public:
    /// Takes over an authenticated connection, which carries the frames of `peer`.
    virtual void accepted(int peer, Socket socket, security::Opener opener) = 0;

   protected:
    ~Owner() = default;
  };

  /// Makes the acceptor of one of `numRails` rails.
  Acceptor(io::Poller& poller, Socket listener, size_t numRails, rendezvous::Directory& directory, Owner& owner);

  void ready(uint32_t events) override;
  /// Calls HandshakeServer::expire(). Also resumes accepting after a shortage of descriptors.
  io::Clock::time_point expire(io::Clock::time_point now);
  uint64_t numRefused() const { return server_.numRefused(); }

 private:
  struct Pending;

  io::Poller& poller_;
  const security::Protection protection_;
  Owner& owner_;
  const Socket listener_;
  io::PausableListener pausable_;
  transport::HandshakeServer server_;
};

}  // namespace agspeed::comm::tcp

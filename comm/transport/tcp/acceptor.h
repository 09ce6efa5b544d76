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

class Acceptor final : public Poller::Handler {
 public:
  class Owner {
   public:
    /// Takes over an authenticated connection, which carries the frames of `peer`.
    virtual void accepted(int peer, Socket socket, Opener opener) = 0;

   protected:
    ~Owner() = default;
  };

  /// Makes the acceptor of one of `numRails` rails.
  Acceptor(Poller& poller, Socket listener, size_t numRails, Directory& directory, Owner& owner);

  void ready(uint32_t events) override;
  /// Calls HandshakeServer::expire(). Also resumes accepting after a shortage of descriptors.
  Clock::time_point expire(Clock::time_point now);
  uint64_t numRefused() const { return server_.numRefused(); }

 private:
  struct Pending;

  Poller& poller_;
  const Protection protection_;
  Owner& owner_;
  const Socket listener_;
  PausableListener pausable_;
  HandshakeServer server_;
};

}  // namespace agspeed::comm::tcp

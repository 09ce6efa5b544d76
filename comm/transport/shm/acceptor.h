// SPDX-License-Identifier: Apache-2.0
// How two processes of a host meet: the messages on the local socket of a pair, one direction each. The handshake is
// that of every connection (comm/wire/handshake.h); with it travel the descriptors of what both will share:
//
//   request  sender -> receiver   and the sender's ring, its bell's page, its bell
//   reply    receiver -> sender   and the receiver's bell's page, its bell
//   confirm  sender -> receiver   frames are in the ring from now on; the socket only tells when its end is closed
//
// Acceptor: the receiver's side. Only processes of the same user are heard; the handshake server bounds and
// authenticates them. Owned by the transport; one thread.
#pragma once

#include "comm/io/pausable_listener.h"
#include "comm/io/poller.h"
#include "comm/rendezvous/directory.h"
#include "comm/transport/handshake_server.h"
#include "comm/transport/shm/doorbell.h"
#include "comm/transport/shm/local_socket.h"

namespace agspeed::comm::shm {

/// A proven connection that brings the frames of a peer.
struct AcceptedConnection {
  FileDescriptor socket;
  Process process;
  SharedMemory ring;
  Doorbell bell;  ///< the peer's
};

class Acceptor final : public Poller::Handler {
 public:
  class Owner {
   public:
    virtual void accepted(int peer, AcceptedConnection connection) = 0;

   protected:
    ~Owner() = default;
  };

  /// `bell` is this process's own.
  Acceptor(Poller& poller, FileDescriptor listener, Directory& directory, const Doorbell& bell, Owner& owner);

  void ready(uint32_t events) override;
  /// Reads what has come from those who have connected; a rank that ended may have proven itself before.
  void readAll() { server_.readAll(); }
  /// As of HandshakeServer; accepts again where descriptors were short.
  void expire(Clock::time_point now);
  size_t numPending() const { return server_.numPending(); }

 private:
  struct Pending;

  Poller& poller_;
  const Doorbell& bell_;
  Owner& owner_;
  const FileDescriptor listener_;
  PausableListener pausable_;
  HandshakeServer server_;
};

}  // namespace agspeed::comm::shm

// SPDX-License-Identifier: Apache-2.0
// How two processes of a host connect: the messages on their local socket. Each direction of a pair has its own socket.
// The handshake is the same as for every connection (comm/wire/handshake.h). Its messages also carry the descriptors of
// the memory and eventfds that both processes share:
//
//   request  sender -> receiver   with the sender's ring, the page of its bell, its bell
//   reply    receiver -> sender   with the page of the receiver's bell, its bell
//   confirm  sender -> receiver   from now on frames are in the ring; the socket only shows when an end is closed
//
// Acceptor: the receiver's side. It accepts processes of the same user only; the handshake server bounds and
// authenticates them. Owned by the transport; one thread.
#pragma once

#include "comm/io/pausable_listener.h"
#include "comm/io/poller.h"
#include "comm/rendezvous/directory.h"
#include "comm/transport/handshake_server.h"
#include "comm/transport/shm/doorbell.h"
#include "comm/transport/shm/local_socket.h"

namespace agspeed::comm::shm {

/// An authenticated connection that carries the frames of a peer.
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

  /// `bell` is this process's own bell.
  Acceptor(Poller& poller, FileDescriptor listener, Directory& directory, const Doorbell& bell, Owner& owner);

  void ready(uint32_t events) override;
  /// Reads from all pending connections: a rank that has ended may have completed its handshake before.
  void readAll() { server_.readAll(); }
  /// See HandshakeServer::expire(). Also accepts again after a shortage of descriptors.
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

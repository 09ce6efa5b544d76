// SPDX-License-Identifier: Apache-2.0
// Acceptor: the receiver's side of connections between two processes of a host. It accepts processes of the same user
// only. Its handshake server authenticates the connections, and limits how many may be pending and for how long. Owned
// by the transport; one thread.
//
// A process makes a local socket for each process to which it sends, so a pair of ranks has two. The handshake is the
// same as for every connection (comm/wire/handshake.h). Its first two messages also carry the descriptors of the
// sender's ring (ring.h) and of the doorbells of both processes (doorbell.h). A doorbell has two descriptors, for the
// memory of its flag and for an eventfd.
//
//   request  sender -> receiver   ring, flag and eventfd of the sender
//   reply    receiver -> sender   flag and eventfd of the receiver
//   confirm  sender -> receiver   no descriptor
//
// After the handshake all frames are in the ring, and the socket carries nothing more. If the socket is closed, the
// process at the other end has ended.
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
  io::FileDescriptor socket;
  Process process;
  SharedMemory ring;
  Doorbell bell;  ///< the bell of the peer
};

class Acceptor final : public io::Poller::Handler {
 public:
  class Owner {
   public:
    /// Takes over an authenticated connection from `peer`.
    virtual void accepted(int peer, AcceptedConnection connection) = 0;

   protected:
    ~Owner() = default;
  };

  /// `bell` is this process's own bell.
  Acceptor(io::Poller& poller, io::FileDescriptor listener, rendezvous::Directory& directory, const Doorbell& bell,
           Owner& owner);

  void ready(uint32_t events) override;
  /// Reads from all pending connections, because a rank that has ended may have completed its handshake before.
  void readAll() { server_.readAll(); }
  /// Calls HandshakeServer::expire(). Also resumes accepting after a shortage of descriptors.
  void expire(io::Clock::time_point now);
  size_t numPending() const { return server_.numPending(); }

 private:
  struct Pending;

  io::Poller& poller_;
  const Doorbell& bell_;
  Owner& owner_;
  const io::FileDescriptor listener_;
  io::PausableListener pausable_;
  transport::HandshakeServer server_;
};

}  // namespace agspeed::comm::shm

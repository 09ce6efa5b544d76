// SPDX-License-Identifier: Apache-2.0
// How two processes of a host meet: the messages on the local socket of a pair, one direction each. The handshake is
// that of every connection (comm/wire/handshake.h); with it travel the descriptors of what both will share:
//
//   request  sender -> receiver   and the sender's ring, its bell's page, its bell
//   reply    receiver -> sender   and the receiver's bell's page, its bell
//   confirm  sender -> receiver   frames are in the ring from now on; the socket only tells when its end is closed
//
// Greeter: the receiver's side. Only processes of the same user are heard; a bounded number at a time, for ten seconds
// each. Owned by the transport; one thread.
#pragma once

#include <list>
#include <optional>
#include <vector>

#include "comm/io/pausable_listener.h"
#include "comm/io/poller.h"
#include "comm/rendezvous/admission.h"
#include "comm/rendezvous/directory.h"
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

class Greeter final : public Poller::Handler {
 public:
  class Owner {
   public:
    virtual void accepted(int peer, AcceptedConnection arrival) = 0;

   protected:
    ~Owner() = default;
  };

  /// `bell` is this process's own.
  Greeter(Poller& poller, FileDescriptor listener, Directory& directory, const Doorbell& bell, Owner& owner);

  void ready(uint32_t events) override;
  /// Reads what has come from those who have connected; a rank that ended may have proven itself before.
  void readAll();
  /// Closes connections that have not proven themselves in time; asks again for peers that were not known yet.
  /// The process has looked at them for `looked` since the last call.
  void expire(Clock::duration looked);
  size_t numPending() const { return pending_.size(); }

 private:
  struct Pending final : Poller::Handler {
    Pending(Greeter& greeter, FileDescriptor socket, Process process);
    ~Pending();
    void ready(uint32_t events) override;

    Greeter& greeter;
    FileDescriptor socket;
    Process process;
    Poller::Id pollId;
    Clock::duration waited{};
    std::optional<RequestBytes> request;
    std::vector<FileDescriptor> handedOver;
    int peer = -1;
    std::optional<Responder> responder;  ///< once the request was answered
    std::list<Pending>::iterator self;
  };
  enum class Verdict { kWait, kRefuse, kAccept };

  Verdict read(Pending& pending);
  Verdict answer(Pending& pending);
  void finish(Pending& pending, Verdict verdict);
  void refuse(Pending& pending, const std::string& why);

  Poller& poller_;
  const FileDescriptor listener_;
  Directory& directory_;
  const Doorbell& bell_;
  Owner& owner_;
  PausableListener listening_;
  std::list<Pending> pending_;  ///< oldest first
  uint64_t numRefused_ = 0;
};

}  // namespace agspeed::comm::shm

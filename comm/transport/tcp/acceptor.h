// SPDX-License-Identifier: Apache-2.0
// Acceptor: the listener of a rail. Anybody can connect to it, so a connection gets a fixed-size buffer, a deadline and
// one of as many places as there are ranks (and 64 on all rails together), and is closed at the first byte that no peer
// would send. Only one that proves the secret of a pair is handed on. Owned by the rail; one thread.
#pragma once

#include <array>
#include <list>
#include <optional>

#include "comm/io/active_timer.h"
#include "comm/io/pausable_listener.h"
#include "comm/io/poller.h"
#include "comm/rendezvous/admission.h"
#include "comm/rendezvous/directory.h"
#include "comm/security/sealing.h"
#include "comm/transport/tcp/socket.h"

namespace agspeed::comm::tcp {

class Acceptor final : public Poller::Handler {
 public:
  class Owner {
   public:
    /// An authenticated connection that brings the frames of `peer`.
    virtual void accepted(int peer, Socket socket, Opener opener) = 0;

   protected:
    ~Owner() = default;
  };

  /// One of `numRails`.
  Acceptor(Poller& poller, Socket listener, size_t numRails, Directory& directory, Owner& owner);

  void ready(uint32_t events) override;
  /// Closes connections that have not proven themselves in time; asks again for peers that were not known yet.
  /// Returns: when it wants to be called again at the latest.
  Clock::time_point expire(Clock::time_point now);
  uint64_t numRefused() const { return numRefused_; }

 private:
  struct Pending final : Poller::Handler {
    Pending(Acceptor& acceptor, Socket socket);
    ~Pending();
    void ready(uint32_t events) override;

    Acceptor& acceptor;
    Socket socket;
    Poller::Id pollId;
    Clock::duration waited{};
    std::array<std::byte, kRequestBytes> bytes{};  ///< of the request, then of the confirmation
    size_t size = 0;
    int peer = -1;                       ///< once it has made its request
    std::optional<Responder> responder;  ///< once the request was answered
    std::list<Pending>::iterator self;
  };
  enum class Verdict { kWait, kRefuse, kAccept };

  Verdict read(Pending& pending);
  Verdict answer(Pending& pending);
  void finish(Pending& pending, Verdict verdict);
  void refuse(std::list<Pending>::iterator pending);

  Poller& poller_;
  Socket listener_;
  Directory& directory_;
  Owner& owner_;
  const size_t numPlaces_;
  PausableListener listening_;
  std::list<Pending> pending_;  ///< oldest first
  ActiveTimer active_{Clock::now()};
  uint64_t numRefused_ = 0;
};

}  // namespace agspeed::comm::tcp

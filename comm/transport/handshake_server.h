// SPDX-License-Identifier: Apache-2.0
// HandshakeServer: the responder's side of handshakes (comm/wire/handshake.h), for every kind of connection. Any
// process can connect to a listener, so this class bounds the cost of unauthenticated peers: how many are accepted at
// once, how many may be pending and for how long, how much each may send, and how many refusals are logged. It hands on
// a connection only after the peer has proven the secret of a pair of ranks.
//
// An acceptor owns the server. It accepts connections, wraps each in a Connection, and reports when one is readable.
// One thread, the directory's; the directory outlives the server.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "comm/io/active_timer.h"
#include "comm/rendezvous/admission.h"
#include "comm/rendezvous/directory.h"
#include "comm/wire/handshake.h"
#include "runtime/base/status.h"

namespace agspeed::comm {

class HandshakeServer {
 public:
  /// An acceptor accepts at most this many connections before other handlers of the poller get their turn.
  static constexpr int kMaxAcceptsAtOnce = 16;

  struct Limits {
    size_t numPlaces;          ///< pending connections; one more replaces the oldest
    Clock::duration deadline;  ///< for the proof; gaps in which this process did not run hardly count (ActiveTimer)
  };
  /// Limits of one of `numRails` network listeners: a place per rank, because all ranks may connect at once, at least 4
  /// places, and at least 64 on all rails together.
  static Limits networkLimits(size_t numRails, size_t numRanks);
  /// Limits of the listener for processes of this host and user.
  static Limits localLimits(size_t numRanks);

  /// A connection that is not authenticated yet: the interface to one kind of connection, and the server's state for
  /// it. Destroyed when it is refused.
  class Connection {
   public:
    virtual ~Connection() = default;
    /// Reads arrived bytes into `target` and none beyond it. nullopt: the connection was closed, or it brought bytes
    /// that a peer never sends. If `target` is empty, any byte is such a byte.
    virtual std::optional<size_t> read(std::span<std::byte> target) = 0;
    /// Returns: whether the reply was written completely.
    virtual bool reply(const ReplyBytes& reply) = 0;
    /// The other end has proven to be `peer`: hands the connection on. If this fails, the connection is refused for
    /// that reason.
    virtual Status accept(int peer, const Responder& responder) = 0;

   private:
    friend HandshakeServer;
    bool isRequestWhole() const { return !responder_ && size_ == kRequestBytes; }

    std::list<std::unique_ptr<Connection>>::iterator self_;
    Clock::duration waited_{};
    std::array<std::byte, kRequestBytes> bytes_{};  ///< of the request, then of the confirmation
    size_t size_ = 0;
    int peer_ = -1;                       ///< set when the request has arrived
    std::optional<Responder> responder_;  ///< set when the request is answered
  };

  /// `kind`: the kind of connection, for the log, such as "a connection".
  HandshakeServer(Limits limits, Directory& directory, std::string_view kind)
      : limits_(limits), directory_(directory), kind_(kind) {}

  void add(std::unique_ptr<Connection> connection);
  /// Call this when the connection is readable. The call may destroy the connection.
  void read(Connection& connection);
  /// Does the same for all pending connections.
  void readAll();
  /// Refuses connections whose deadline has passed, and answers requests of peers that the directory did not know
  /// before. Returns: the latest time for the next call.
  Clock::time_point expire(Clock::time_point now);

  size_t numPending() const { return pending_.size(); }
  uint64_t numRefused() const { return numRefused_; }

 private:
  using Pending = std::list<std::unique_ptr<Connection>>;
  enum class Verdict { kWait, kRefuse, kAccept };

  Verdict advance(Connection& connection);
  Verdict answer(Connection& connection);
  void finish(Connection& connection, Verdict verdict);
  void refuse(Pending::iterator connection, std::string_view why);
  void countRefused(std::string_view why);

  const Limits limits_;
  Directory& directory_;
  const std::string_view kind_;
  Pending pending_;  ///< oldest first
  ActiveTimer active_{Clock::now()};
  uint64_t numRefused_ = 0;
};

}  // namespace agspeed::comm

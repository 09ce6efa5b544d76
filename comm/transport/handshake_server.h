// SPDX-License-Identifier: Apache-2.0
// HandshakeServer: the responder's side of handshakes (comm/wire/handshake.h), for every kind of connection. It hands
// on a connection only after the peer has proven that it knows the secret of its pair of ranks. PendingConnections
// limits the number and the age of unauthenticated connections. This class also limits how many connections are
// accepted at once, and how many refusals are logged.
//
// An acceptor owns the server. The acceptor accepts connections, wraps each in a Connection, and calls read() when one
// is readable. All calls come from the directory's thread. The directory outlives the server.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "comm/rendezvous/admission.h"
#include "comm/rendezvous/directory.h"
#include "comm/rendezvous/pending_connections.h"
#include "comm/wire/handshake.h"
#include "runtime/base/status.h"

namespace agspeed::comm::transport {

class HandshakeServer {
 public:
  /// An acceptor accepts at most this many connections before it returns to the poller, so that other handlers run.
  static constexpr int kMaxAcceptsAtOnce = 16;

  /// Returns the limits of one of `numRails` network listeners. A listener has a place for each rank, because all ranks
  /// may connect at once. It has at least 4 places, and all rails together have at least 64.
  static rendezvous::PendingLimits networkLimits(size_t numRails, size_t numRanks);
  /// Returns the limits of the listener for processes of this host and user.
  static rendezvous::PendingLimits localLimits(size_t numRanks);

  /// A connection that is not authenticated yet. A derived class implements the functions below for one kind of
  /// connection. The private members are the server's state. The server destroys a connection that it refuses.
  class Connection {
   public:
    virtual ~Connection() = default;
    /// Reads arrived bytes, at most as many as fit into `target`, and returns how many. Returns nullopt if the
    /// connection was closed, or if bytes arrived that a peer never sends. If `target` is empty, a peer sends no byte
    /// at this point of the handshake, so any byte is an error.
    virtual std::optional<size_t> read(std::span<std::byte> target) = 0;
    /// Sends the reply. Returns false if it was not written completely.
    virtual bool reply(const wire::ReplyBytes& reply) = 0;
    /// Hands the connection on, because its other end has proven to be `peer`. If this fails, the server refuses the
    /// connection and logs the error as the reason.
    virtual Status accept(int peer, const wire::Responder& responder) = 0;

   private:
    friend HandshakeServer;
    bool isRequestWhole() const { return !responder_ && size_ == wire::kRequestBytes; }

    std::vector<std::byte> bytes_;              ///< bytes of the request, later of the confirmation
    size_t size_ = 0;                           ///< number of bytes that have arrived in bytes_
    int peer_ = -1;                             ///< the rank that the request claims; -1 before the request
    std::optional<wire::Responder> responder_;  ///< set after the request was answered
  };

  /// `kind`: the kind of connection, for the log, such as "a connection".
  HandshakeServer(rendezvous::PendingLimits limits, rendezvous::Directory& directory, std::string_view kind)
      : directory_(directory), kind_(kind), pending_(limits) {}

  /// Adds a pending connection. Refuses the oldest one if all places are taken.
  void add(std::unique_ptr<Connection> connection);
  /// Reads from the connection and continues its handshake. Call it when the connection is readable. The call may
  /// destroy the connection.
  void read(Connection& connection);
  /// Calls read() for all pending connections.
  void readAll();
  /// Refuses connections whose deadline has passed. Answers requests that had to wait because the directory did not
  /// have the peer's record yet. Returns the latest time for the next call.
  io::Clock::time_point expire(io::Clock::time_point now);

  size_t numPending() const { return pending_.size(); }
  uint64_t numRefused() const { return numRefused_; }

 private:
  enum class Verdict { kWait, kRefuse, kAccept };

  /// Reads the next handshake message. If it is complete, answers the request or checks the confirmation.
  Verdict advance(Connection& connection);
  /// Answers a complete request. Returns kWait if the directory does not have the peer's record yet, or if the reply
  /// was sent, because the confirmation follows.
  Verdict answer(Connection& connection);
  /// Carries out the verdict: hands the connection on, refuses it, or does nothing.
  void finish(Connection& connection, Verdict verdict);
  /// Counts a refused connection, and logs the 1st, 2nd, 4th, 8th, ... one.
  void countRefused(std::string_view why);

  rendezvous::Directory& directory_;
  const std::string_view kind_;
  rendezvous::PendingConnections<Connection> pending_;
  uint64_t numRefused_ = 0;
};

}  // namespace agspeed::comm::transport

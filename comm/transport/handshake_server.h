// SPDX-License-Identifier: Apache-2.0
// HandshakeServer: the responder's side of handshakes (comm/wire/handshake.h), whatever connections are made of.
// Anybody can connect to a listener, so all bounds on what unauthenticated peers cost are here: how many are accepted
// at once, how many may be pending, for how long, what each may send, and how much is logged of those that are refused.
// Only a connection that proves the secret of a pair of ranks is handed on.
//
// An acceptor accepts connections, says when one is readable, and adapts each (Connection); it owns the server. One
// thread, the directory's; the directory outlives the server.
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
  /// So many connections are accepted before others of the poller get their turn.
  static constexpr int kMaxAcceptsAtOnce = 16;

  struct Limits {
    size_t numPlaces;          ///< connections pending at a time; one more takes the place of the oldest
    Clock::duration deadline;  ///< to prove itself; time in which this process did not look does not count
  };
  /// Of one of `numRails` listeners in the network: as many places as there are ranks, since all may come at once, and
  /// 64 on all rails together.
  static Limits networkLimits(size_t numRails, size_t numRanks);
  /// Of the listener for processes of this host and user.
  static Limits localLimits(size_t numRanks);

  /// A connection that has yet to prove itself: what differs between kinds of connection, and what the server keeps of
  /// each. Destroyed when it is refused.
  class Connection {
   public:
    virtual ~Connection() = default;
    /// Reads what has come, at most `target` and not one byte beyond. nullopt: it was closed, or brought what no peer
    /// sends; where `target` is empty that is anything at all.
    virtual std::optional<size_t> read(std::span<std::byte> target) = 0;
    /// Returns: whether the reply left whole.
    virtual bool reply(const ReplyBytes& reply) = 0;
    /// It has proven to bring the frames of `peer`: hands itself on. Failure: it is refused for that reason.
    virtual Status accept(int peer, const Responder& responder) = 0;

   private:
    friend HandshakeServer;
    bool isRequestWhole() const { return !responder_ && size_ == kRequestBytes; }

    std::list<std::unique_ptr<Connection>>::iterator self_;
    Clock::duration waited_{};
    std::array<std::byte, kRequestBytes> bytes_{};  ///< of the request, then of the confirmation
    size_t size_ = 0;
    int peer_ = -1;                       ///< once it has made its request
    std::optional<Responder> responder_;  ///< once the request was answered
  };

  /// `kind` of connection, for the log: "a connection".
  HandshakeServer(Limits limits, Directory& directory, std::string_view kind)
      : limits_(limits), directory_(directory), kind_(kind) {}

  void add(std::unique_ptr<Connection> connection);
  /// Something has come; afterwards the connection may be gone.
  void read(Connection& connection);
  /// The same for all that are pending.
  void readAll();
  /// Refuses connections that have not proven themselves in time; admits peers that were not known yet. Returns: when
  /// it wants to be called again at the latest.
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

// SPDX-License-Identifier: Apache-2.0
// Directory: publishes the record of this rank in the store, and reads the record of another rank when it is first
// needed. Starting a rank therefore costs two writes, whatever the number of ranks. If the store does not answer, only
// the directory's look-up thread blocks. A directory without a store gets the records of other ranks through
// introduce(). Only one thread at a time may use a directory. The messenger owns it, and the store outlives it.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "comm/rendezvous/async_lookup.h"
#include "comm/rendezvous/peer_record.h"
#include "comm/rendezvous/rank_names.h"
#include "comm/rendezvous/store.h"

namespace agspeed::comm::rendezvous {

struct DirectoryOptions {
  int rank = 0;
  int size = 1;
  uint32_t epoch = 0;  ///< number of the group's incarnation; each incarnation has its own records
  security::Protection protection = security::Protection::kAuthenticated;
  /// Empty: the mode is opportunistic, and an attacker who can change the store can pose as another rank.
  security::JobKey key;
  std::chrono::milliseconds storeTimeout{10000};  ///< a look-up fails if the store has not answered after this time
  RankNames names;                                ///< introduce() sets the name of a peer
};

/// Another rank, whose record is verified.
struct Peer {
  PeerRecord record;
  security::Digest secret{};  ///< secret that this rank shares with this peer alone
};

class Directory {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  Directory(Store& store, DirectoryOptions options);
  /// Makes a directory without a store.
  explicit Directory(DirectoryOptions options);

  const DirectoryOptions& options() const { return options_; }
  RankNames& names() { return names_; }
  const std::vector<RailAddress>& rails() const { return rails_; }
  const security::KeyPair::PublicKey& publicKey() const { return keys_.publicKey(); }

  /// Returns the key under which the store has the record of a rank.
  static std::string recordKey(uint32_t epoch, int rank);

  /// Makes the record of this rank, which listens on `rails`, and publishes it in the store, if there is one. Invalid
  /// argument: the rank has been published before.
  Status publish(std::vector<RailAddress> rails);
  /// Returns the encoded record of this rank. Requires: publish().
  const std::string& record() const { return record_; }
  /// Adds a peer by its encoded record. If the record is not valid, find() fails. `name`: for errors and log lines.
  /// Later calls for the same peer change only its name.
  void introduce(int rank, std::string name, const std::string& record);

  /// Looks up a peer. Returns:
  /// - the peer, if its record was found; the pointer stays valid
  /// - nullptr if the peer has not published itself yet, or the store has not answered yet
  /// - invalid argument, with the reason, if the peer can never be connected
  /// - unavailable if the store cannot be read
  ///
  /// The call waits at most 2 ms for the store (AsyncLookup). It asks for a missing peer every 5 ms at first, and less
  /// often the longer the peer is missing.
  StatusOr<const Peer*> find(int rank, TimePoint now);
  /// Returns when to call find() again for a peer that was missing or for which the store has not answered.
  TimePoint askAgainAt(int rank) const;

 private:
  /// The pause before the next look-up of a missing rank: (time for which it has been missing) / kPausesPerWait, within
  /// the limits kShortestPause and kLongestPause. Pauses grow because one store serves all ranks, and a late rank may
  /// be minutes late.
  static constexpr std::chrono::milliseconds kShortestPause{5}, kLongestPause{250};
  static constexpr int kPausesPerWait = 16;
  static constexpr std::chrono::milliseconds kWarnAfter{500};  ///< for a store that does not answer
  static constexpr std::chrono::seconds kLateAfter{5};         ///< for a rank that has no record in the store

  /// The state of one other rank.
  struct Entry {
    std::optional<Peer> peer;
    std::optional<Status> failure;         ///< why the rank cannot be connected; final
    std::optional<TimePoint> wantedSince;  ///< when find() was first called for the rank
    TimePoint nextTry{};                   ///< the time of the next look-up; see askAgainAt()
    std::optional<TimePoint> requestedAt;  ///< when the store was asked; nullopt: no request is unanswered
    bool isWarned = false;                 ///< a warning about the unanswered request was logged
  };
  /// Returns the time of the next look-up of a peer that has been missing since `since`.
  static TimePoint nextRetry(TimePoint since, TimePoint now);
  /// Looks up a peer in the store.
  StatusOr<const Peer*> lookUp(int rank, Entry& entry, TimePoint now);
  /// Verifies the record of a peer. Stores the peer, or the reason why it cannot be connected.
  StatusOr<const Peer*> add(int rank, Entry& entry, const std::string& record) const;
  /// Logs a warning if `rank` is late and no warning about a late rank was logged before.
  void warnOfMissing(int rank, const Entry& entry, TimePoint now);
  /// Fails if the store has not answered within the timeout. Logs a warning before that.
  Status checkStore(int rank, Entry& entry, TimePoint now) const;
  /// Verifies the record of `rank`, and derives the secret that this rank shares with it.
  StatusOr<Peer> check(int rank, const std::string& text) const;

  Store* store_ = nullptr;  ///< nullptr: the directory has no store
  const DirectoryOptions options_;
  RankNames names_;
  const security::KeyPair keys_;
  std::vector<RailAddress> rails_;
  std::string record_;
  std::map<int, Entry> entries_;
  bool isLateWarned_ = false;          ///< a warning about a missing rank was logged
  std::optional<AsyncLookup> lookup_;  ///< set if the directory has a store
};

}  // namespace agspeed::comm::rendezvous

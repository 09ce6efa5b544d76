// SPDX-License-Identifier: Apache-2.0
// Directory: the records of the other ranks, each read from the store when it is first needed. Starting a rank
// therefore costs two writes, whatever the number of ranks. A store that does not answer blocks only the directory's
// look-up thread. Owned by the messenger; one thread at a time; the store outlives it.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "comm/rendezvous/async_lookup.h"
#include "comm/rendezvous/peer_record.h"
#include "comm/rendezvous/store.h"

namespace agspeed::comm {

struct DirectoryOptions {
  int rank = 0;
  int size = 1;
  uint32_t epoch = 0;  ///< incarnation of the group; each has its own records
  Protection protection = Protection::kAuthenticated;
  /// Empty: opportunistic; an attacker who can change the store can then pose as another rank.
  JobKey key;
  std::chrono::milliseconds storeTimeout{10000};  ///< a look-up fails if the store has not answered after this time
};

/// Another rank, with a checked record.
struct Peer {
  PeerRecord record;
  Digest secret{};  ///< shared with this peer alone
};

class Directory {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  Directory(Store& store, DirectoryOptions options)
      : store_(store), options_(std::move(options)), keys_(KeyPair::generate()), lookup_(store.reader()) {}

  const DirectoryOptions& options() const { return options_; }
  const std::vector<RailAddress>& rails() const { return rails_; }
  const KeyPair::PublicKey& publicKey() const { return keys_.publicKey(); }

  /// The store's key of a rank's record.
  static std::string recordKey(uint32_t epoch, int rank);

  /// Publishes that this rank listens on `rails`. Invalid argument: the rank has been published before.
  Status publish(std::vector<RailAddress> rails);

  /// The peer; nullptr while it has not published itself or the store has not answered; or why it cannot be connected.
  /// Invalid argument is final; unavailable means that the store cannot be read. The call does not wait for the store.
  /// It asks for a missing peer every 5 ms at first and less often the longer the peer is missing. The pointer stays
  /// valid.
  StatusOr<const Peer*> find(int rank, TimePoint now);
  /// When to call find() again for a peer that was missing or for which the store has not answered.
  TimePoint askAgainAt(int rank) const;

 private:
  /// The pauses grow because one store serves all ranks, and a late rank may be minutes late.
  static constexpr std::chrono::milliseconds kShortestPause{5}, kLongestPause{250};
  static constexpr int kPausesPerWait = 16;
  static constexpr std::chrono::milliseconds kWarnAfter{500};
  static constexpr std::chrono::seconds kLateAfter{5};

  struct Entry {
    std::optional<Peer> peer;
    Status failure;
    std::optional<TimePoint> wantedSince;
    TimePoint nextTry{};
    std::optional<TimePoint> requestedAt;  ///< while the store has not answered
    bool isWarned = false;
  };
  /// The pause before the next try grows with the time since `since`.
  static TimePoint nextRetry(TimePoint since, TimePoint now);
  /// Warns about the first rank that is late, and only about that one.
  void warnOfMissing(int rank, const Entry& entry, TimePoint now);
  Status checkStore(int rank, Entry& entry, TimePoint now) const;
  StatusOr<Peer> check(int rank, const std::string& text) const;

  Store& store_;
  const DirectoryOptions options_;
  const KeyPair keys_;
  std::vector<RailAddress> rails_;
  std::map<int, Entry> entries_;
  bool isLateWarned_ = false;
  AsyncLookup lookup_;
};

}  // namespace agspeed::comm

// SPDX-License-Identifier: Apache-2.0
// Directory: what a rank knows about the others, read from the store when first wanted, so that starting costs one
// write however many ranks there are. A store that does not answer blocks nobody but a thread of this. Owned by the
// messenger; one thread at a time; the store outlives it.
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
  JobKey key;                                     ///< empty: opportunistic, who can change the store can listen
  std::chrono::milliseconds storeTimeout{10000};  ///< a store that has not answered for so long is given up
};

/// Another rank, its record checked.
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

  /// Under which key of the store a rank's record stands.
  static std::string recordKey(uint32_t epoch, int rank);

  /// Makes this rank known as listening on `rails`. A rank that is already there is an invalid argument.
  Status publish(std::vector<RailAddress> rails);

  /// The peer, nullptr while it has not published itself or the store has not answered, or why no connection with it is
  /// possible: an invalid argument is final, unavailable a store that cannot be read. Asks the store for a peer every
  /// 5 ms at first, ever more seldom the longer it is not there, and does not wait for it. The pointer stays valid.
  StatusOr<const Peer*> find(int rank, TimePoint now);
  /// When to look again for a peer that was not there, or for which the store has not answered.
  TimePoint askAgainAt(int rank) const;

 private:
  /// One store serves all ranks, and those that come late may come minutes late.
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
  /// Ever longer from `since` on.
  static TimePoint nextRetry(TimePoint since, TimePoint now);
  /// Says once that somebody is not there yet: the first who is late.
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

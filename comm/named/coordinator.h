// SPDX-License-Identifier: Apache-2.0
// Coordinator: what all ranks of a group have ready, and in what order they run it. The group's lowest rank has one.
//
// Ranks submit in orders of their own; an operation is ready when the last of them did. Ready all-reduces and
// broadcasts of one kind are fused up to a number of bytes. Ranks whose requests for a name differ all get the same
// error, which names two of them and both values; the next operation works. A rank that has joined counts as having
// submitted everything.
//
// Names that come again are cached: the response that runs one gives it an id, and a rank whose request has not changed
// since says the id alone, as does the response. An id keeps its name as long as the group lives; beyond the capacity
// names stay without.
//
// A plain value: sends nothing, waits for nothing. Threading: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "comm/io/clock.h"
#include "comm/named/request.h"
#include "runtime/base/status.h"

namespace agspeed::comm {

class Coordinator {
 public:
  /// Of a group of `size` ranks, with so many cached names at most.
  Coordinator(int size, size_t cacheCapacity);

  /// `rank` has this ready. Requires: not the same name twice before it ran.
  void add(int rank, Request request, Clock::time_point now);
  /// The same as under this id before; fails as data loss where there is none.
  Status addCached(int rank, uint32_t id, Clock::time_point now);

  /// What is ready, in bytes of all ready operations together; 0 where nothing is, at least 1 where something is.
  size_t readyBytes() const;
  /// The next response; up to `fusionBytes` are fused. Requires: readyBytes() > 0.
  Response next(size_t fusionBytes);

  /// An operation that not all ranks have ready.
  struct Stalled {
    std::string name;
    std::vector<int> missing;  ///< ranks
    Clock::time_point since;   ///< when the first rank had it ready
  };
  /// Those from before `since`, oldest first.
  std::vector<Stalled> stalled(Clock::time_point since) const;
  /// The ranks that have not joined; none where no rank has.
  std::vector<int> unjoined() const;

 private:
  using Handle = std::shared_ptr<const Request>;

  struct Entry {
    std::string name;
    std::vector<Handle> requests;  ///< per rank; null where it has none yet
    int numSubmitted = 0;
    uint64_t order = 0;
    Clock::time_point since;
  };

  struct Cached {
    std::vector<Handle> requests;  ///< per rank, as of the last response
    Agreement agreement;           ///< as told last
  };

  void add(int rank, Handle request, Clock::time_point now);
  void join(int rank);
  bool isReady(const Entry& entry) const;
  void moveReady();
  Response responseFor(Entry entry);
  void fuse(Response& response, size_t fusionBytes);
  Response::Item itemFor(const Entry& entry);

  const int size_;
  const size_t cacheCapacity_;
  std::unordered_map<std::string, Entry> table_;
  std::deque<Entry> ready_;
  size_t readyBytes_ = 0;
  uint64_t numEntries_ = 0;
  std::vector<bool> hasJoined_;
  int numJoined_ = 0, lastJoined_ = -1;
  std::unordered_map<std::string, uint32_t> ids_;
  std::vector<Cached> cache_;  ///< by id - 1
};

/// Why the requests cannot run together: a sentence that names two ranks and both values; nothing where they can.
/// Requires: at least one is not null.
std::optional<std::string> findMismatch(const std::vector<std::shared_ptr<const Request>>& requests);

}  // namespace agspeed::comm

// SPDX-License-Identifier: Apache-2.0
// StartQueue: passes operations from the threads that start them to the engine's driver, and keeps the names in use.
//
// Starts within kFollow of each other are a burst. The driver takes a burst together, because one round of the driver
// takes longer than one start. Training steps repeat, so bursts repeat. The queue records which name followed which: if
// b starts within kFollow after a, b is the follower of a. When a starts again, the driver is not woken until its
// follower has started. So the driver takes a repeated burst as a whole, after its last name. The other starts of the
// burst do not even read the clock. Thread-safety: all functions, from any thread.
#pragma once

#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "comm/named/named_operation.h"

namespace agspeed::comm::named {

class StartQueue {
 public:
  /// A thread need not wake the driver again within this time after a kick. The driver takes the queue again by itself
  /// at the end of this time.
  static constexpr std::chrono::microseconds kGather{200};
  /// The longest time between two starts of one burst.
  static constexpr std::chrono::microseconds kFollow{20};
  /// The longest time for which the queue waits for a burst to complete. The driver takes a longer burst in parts.
  static constexpr std::chrono::milliseconds kBurst{1};

  /// An operation that was refused, because its name is in flight or the group has ended.
  struct Refusal {
    NamedHandle operation;
    Status reason;
  };
  /// The result of add().
  struct Added {
    bool isFirst = false;    ///< the queue was empty: the driver must take it at `takeBy` or earlier
    bool isKickDue = false;  ///< the caller must wake the driver, which takes the queue at once
    io::Clock::time_point takeBy{};
    std::vector<Refusal> refused;
  };
  /// Adds operations, and returns which of them are refused. The caller must wake the driver as the result says.
  /// `rank`: for the text of a refusal.
  Added add(std::span<const NamedHandle> operations, int rank);
  /// Returns ok if add() would accept an operation of this name now, else the error.
  Status admits(const std::string& text, int rank);
  /// Records that the starting thread has woken the driver. The time to the next start is measured from this call,
  /// because the thread was busy with the kick before.
  void kicked();
  /// Moves all operations added since the last call into `taken`, and reuses its memory.
  void take(std::vector<NamedHandle>& taken);
  /// Allows the names of these operations, which have completed, to be used again. Ignores null operations.
  void ended(std::span<const NamedHandle> operations);
  /// Returns the name object for this text, or null if there is none.
  OwnNameHandle find(const std::string& text);
  /// Refuses all later operations with this reason.
  void close(const Status& reason);
  /// Returns ok, or why the queue is closed.
  Status health();

 private:
  static constexpr size_t kMinNames = 1024;

  // The next three functions require mutex_.

  /// Marks the name of the operation as in flight. Returns an error if the operation must be refused.
  Status claimName(NamedOperation& operation, int rank);
  /// Returns the name object for this text, and makes it if there is none.
  OwnNameHandle nameOf(const std::string& text);
  /// If the operation at index `numBefore` started within kFollow after the operation before it, or while the queue
  /// waited for a follower, its name becomes the follower of the earlier name. Otherwise the earlier name has no
  /// follower.
  void learnFollower(size_t numBefore, io::Clock::time_point now);

  std::mutex mutex_;
  /// The names, by their text. Names without users are removed when the map has doubled in size since the last removal.
  std::unordered_map<std::string, std::weak_ptr<OwnName>> names_;
  size_t numNamesAtMost_ = kMinNames;
  std::vector<NamedHandle> added_;
  bool isAwaitingFollower_ = false;  ///< the queue waits for the follower of the last added name
  bool isKickDeferred_ = false;      ///< the caller wakes the driver only at the end of the burst
  io::Clock::time_point lastKick_{}, lastAdd_{}, firstAdd_{};
  OwnNameHandle lastName_;         ///< the last name that the driver took, if its follower is not known yet; else null
  std::optional<Status> failure_;  ///< why the queue is closed
};

}  // namespace agspeed::comm::named

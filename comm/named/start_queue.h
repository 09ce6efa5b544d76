// SPDX-License-Identifier: Apache-2.0
// StartQueue: hands operations from the threads that start them to the engine's driver, and knows the names in use.
//
// The driver takes calls that follow each other closely together, because one round of the driver takes longer than one
// call. Training steps repeat. So if a name was followed closely by another one the last time, the queue waits for that
// name: a repeated burst leaves as a whole with its last name, and its other calls do not even read the clock.
// Thread-safety: all functions, from any thread.
#pragma once

#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "comm/named/named_operation.h"

namespace agspeed::comm {

class StartQueue {
 public:
  /// The driver takes the queue again this long after it took it.
  static constexpr std::chrono::microseconds kGather{200};
  /// A start follows the last one if it comes within this time.
  static constexpr std::chrono::microseconds kFollow{20};
  /// A longer burst leaves in parts.
  static constexpr std::chrono::milliseconds kBurst{1};

  /// An operation that was refused, because its name is in flight or the group has ended.
  struct Refusal {
    NamedHandle operation;
    Status reason;
  };
  struct Added {
    bool isFirst = false;    ///< the queue was empty: the driver has to take it by `takeBy`
    bool isKickDue = false;  ///< the driver has to take it at once; else by `takeBy`, or when a thread waits
    Clock::time_point takeBy{};
    std::vector<Refusal> refused;
  };
  /// `rank` is for the text of a refusal.
  Added add(std::span<const NamedHandle> operations, int rank);
  /// The starting thread has given the kick that was due. It can start more operations only from now on.
  void kicked();
  /// Moves all operations added since the last call into `taken`, and reuses its memory.
  void take(std::vector<NamedHandle>& taken);
  /// The names of these operations may be used again. Null operations are ignored.
  void ended(std::span<const NamedHandle> operations);
  /// The name object for this text if it is in use.
  OwnNameHandle find(const std::string& text);
  /// Refuses all later operations with this reason.
  void close(const Status& reason);
  /// Ok, or why the queue is closed.
  Status health();

 private:
  static constexpr size_t kMinNames = 1024;

  /// Requires: mutex_.
  Status refusalOf(NamedOperation& operation, int rank);
  OwnNameHandle nameOf(const std::string& text);
  /// Learns which name follows which: compares the first operation after `numBefore` with the one before it.
  void follow(size_t numBefore, Clock::time_point now);

  std::mutex mutex_;
  /// By text. Names that are out of use are removed when the map has doubled since the last removal.
  std::unordered_map<std::string, std::weak_ptr<OwnName>> names_;
  size_t numNamesAtMost_ = kMinNames;
  std::vector<NamedHandle> added_;
  bool isAwaiting_ = false;  ///< the name that was added last waits for the name that follows it
  bool isPutOff_ = false;    ///< the driver takes `added_` once that name has come
  Clock::time_point lastKick_{}, lastAdd_{}, firstAdd_{};
  OwnNameHandle lastName_;  ///< the last name that was taken, if its follower is still to be learned; else null
  Status failure_;
};

}  // namespace agspeed::comm

// SPDX-License-Identifier: Apache-2.0
// StartQueue: operations on their way from the threads that start them to the engine's driver, and the names in use.
//
// Calls that follow each other closely are taken together: a round of the driver takes longer than a call does. Steps
// repeat themselves, so a name waits for the one that followed it closely the last time: a burst of names that come
// again leaves with its last, and costs each of them no look at the clock.
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
  /// Whoever drives looks into the queue so long after it did.
  static constexpr std::chrono::microseconds kGather{200};
  /// What is started so soon after the last start follows it.
  static constexpr std::chrono::microseconds kFollow{20};
  /// A burst that lasts longer leaves in parts.
  static constexpr std::chrono::milliseconds kBurst{1};

  /// The name is under way, or the group is over.
  struct Refusal {
    NamedHandle operation;
    Status reason;
  };
  struct Added {
    bool isFirst = false;    ///< the queue was empty: the driver is to take what is there by `takeBy`
    bool isKickDue = false;  ///< it is to do so at once; else then, or where somebody waits
    Clock::time_point takeBy{};
    std::vector<Refusal> refused;
  };
  /// `rank` is for the sentence of a refusal.
  Added add(std::span<const NamedHandle> operations, int rank);
  /// The kick that was due has been given, by the thread that starts: it comes back only now.
  void kicked();
  /// Moves what has been added since into `taken`, whose memory is used again.
  void take(std::vector<NamedHandle>& taken);
  /// Their names may be used again. Null operations are passed over.
  void ended(std::span<const NamedHandle> operations);
  /// The name of this text, if it is in use.
  OwnNameHandle find(const std::string& text);
  /// What is added from now on is refused with this.
  void close(const Status& reason);
  /// Ok, or why it is closed.
  Status health();

 private:
  static constexpr size_t kMinNames = 1024;

  /// Requires: mutex_.
  Status refusalOf(NamedOperation& operation, int rank);
  OwnNameHandle nameOf(const std::string& text);
  /// What has been added after the first `numBefore`, as seen now: learns what follows what.
  void follow(size_t numBefore, Clock::time_point now);

  std::mutex mutex_;
  /// By text. Those that are out of use are removed when so many have been added as there were.
  std::unordered_map<std::string, std::weak_ptr<OwnName>> names_;
  size_t numNamesAtMost_ = kMinNames;
  std::vector<NamedHandle> added_;
  bool isAwaiting_ = false;  ///< the name that was added last waits for the one that follows it
  bool isPutOff_ = false;    ///< `added_` is to be taken once that has come
  Clock::time_point lastKick_{}, lastAdd_{}, firstAdd_{};
  OwnNameHandle lastName_;  ///< of what has been taken: added last; null: nothing is to be learned of it
  Status failure_;
};

}  // namespace agspeed::comm

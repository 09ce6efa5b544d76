// SPDX-License-Identifier: Apache-2.0
// StartQueue: operations on their way from the threads that start them to the engine's driver, and the names under way.
//
// Calls that follow each other closely are taken together: a round of the driver takes longer than a call does.
// Thread-safety: all functions, from any thread.
#pragma once

#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "comm/named/response_runner.h"

namespace agspeed::comm {

class StartQueue {
 public:
  /// Whoever drives looks into the queue so long after it did.
  static constexpr std::chrono::microseconds kGather{200};

  struct Added {
    bool isFirst = false;    ///< the queue was empty: the driver is to be told
    bool isKickDue = false;  ///< and is to look at once; else it does so within kGather, or where somebody waits
  };
  /// Fails where the group is over, or the name is under way at `rank`.
  StatusOr<Added> add(NamedHandle operation, int rank);
  std::vector<NamedHandle> take();
  /// Their names may be used again. Null operations are passed over.
  void ended(const std::vector<NamedHandle>& operations);
  /// What is added from now on fails with this.
  void close(const Status& reason);
  /// Ok, or why it is closed.
  Status health();

 private:
  std::mutex mutex_;
  std::unordered_set<std::string> names_;
  std::vector<NamedHandle> added_;
  Clock::time_point lastKick_{};
  Status failure_;
};

}  // namespace agspeed::comm

// SPDX-License-Identifier: Apache-2.0
// LoopbackMessenger: ranks in one process that pass messages through memory. It serves in tests of all code above the
// messenger, and as an example of how to write a messenger.
//
// Threading: see messenger.h; the ranks may run in different threads. The group has one lock, under which messages are
// copied. Ownership: the group owns the messengers and outlives all use of them.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <random>
#include <vector>

#include "comm/messaging/messenger.h"

namespace agspeed::comm::messaging {

struct LoopbackOptions {
  /// A send of at most this many bytes copies the message and completes at once. A longer send completes when its
  /// message is received.
  size_t eagerBytes = 4096;
  /// The seed of the random order in which messages arrive; 0: they arrive in the order of their sends.
  uint64_t shuffleSeed = 0;
  /// Messenger::bytesPerSecond() of each rank; empty: not known.
  std::vector<double> bytesPerSecond = {};
  bool isRemote = false;  ///< the result of Messenger::isRemote() at all ranks
  /// Messenger::roundTripSeconds() of all ranks.
  double roundTripSeconds = 0;
  /// Messenger::host() of each rank; empty: not known.
  std::vector<uint32_t> hosts = {};
};

class LoopbackMessenger;

/// The ranks 0..size-1 of one process.
class LoopbackGroup {
 public:
  explicit LoopbackGroup(int size, LoopbackOptions options = {});
  ~LoopbackGroup();

  /// The messenger of `rank`, owned by the group.
  Messenger& messenger(int rank);
  /// Simulates that the process of `rank` ends. All transfers with this rank fail as unavailable, now and later, and
  /// the errors name the rank. From any thread.
  void kill(int rank);
  /// Returns the total length of all messages that `rank` has sent. From any thread.
  uint64_t numBytesSent(int rank);
  /// Returns the total length of the messages that `rank` has sent to `peer`. From any thread.
  uint64_t numBytesSent(int rank, int peer);

 private:
  friend class LoopbackMessenger;

  const LoopbackOptions options_;
  std::mutex mutex_;  ///< guards every messenger's state and the fields below
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<LoopbackMessenger>> ranks_;
  std::vector<bool> isDead_;
  std::vector<std::vector<uint64_t>> numBytesSent_;  ///< numBytesSent_[from][to]
};

}  // namespace agspeed::comm::messaging

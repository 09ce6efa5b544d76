// SPDX-License-Identifier: Apache-2.0
// LoopbackMessenger: ranks in one process that pass messages through memory. It serves tests of everything above the
// messenger, and as an example for another messenger.
//
// Threading: each messenger is used as messenger.h says; different ranks may run in different threads. The group has
// one lock, under which messages are copied. Ownership: the group owns the messengers and outlives all use of them.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <random>
#include <vector>

#include "comm/messaging/messenger.h"

namespace agspeed::comm {

struct LoopbackOptions {
  /// Messages up to this size are copied and their sends finish at once; larger ones finish when they were received.
  size_t eagerBytes = 4096;
  /// Not zero: messages arrive in a random order drawn from this seed.
  uint64_t shuffleSeed = 0;
  /// Messenger::bytesPerSecond() of each rank; empty: not known.
  std::vector<double> bytesPerSecond = {};
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
  /// Makes `rank` gone: every transfer with it, now or later, fails as unavailable and names it. From any thread.
  void kill(int rank);
  /// Bytes of all messages that `rank` has sent. From any thread.
  uint64_t numBytesSent(int rank);
  /// Bytes of the messages that `rank` has sent to `peer`. From any thread.
  uint64_t numBytesSent(int rank, int peer);

 private:
  friend class LoopbackMessenger;

  const LoopbackOptions options_;
  std::mutex mutex_;  ///< guards every messenger's state and the fields below
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<LoopbackMessenger>> ranks_;
  std::vector<bool> isDead_;
  std::vector<std::vector<uint64_t>> numBytesSent_;  ///< [from][to]
};

}  // namespace agspeed::comm

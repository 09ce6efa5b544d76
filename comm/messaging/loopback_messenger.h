// SPDX-License-Identifier: Apache-2.0
// Ranks that live in one process and pass messages through memory: for tests of everything above the messenger, and the
// template to start another messenger from.
//
// Threading: each messenger is used as messenger.h says; different ranks may run in different threads. One lock per
// group; a message is copied under it. Ownership: the group owns the messengers and outlives all use of them.
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
  /// What each rank is believed to send to all others together; empty: not known.
  std::vector<double> bytesPerSecond = {};
  /// As Messenger::roundTripSeconds().
  double roundTripSeconds = 0;
  /// Of each rank, as Messenger::host(); empty: not known.
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
  /// From any thread: `rank` is gone; every transfer with it, now or later, fails as unavailable and names it.
  void kill(int rank);
  /// From any thread: bytes of the messages that `rank` has sent.
  uint64_t numBytesSent(int rank);
  /// The same of those to `peer`.
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

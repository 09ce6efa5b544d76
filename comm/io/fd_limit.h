// SPDX-License-Identifier: Apache-2.0
// Descriptors, of which a process may open only so many: making do with those that it may, and waiting for more.
//
// Limits and rooms belong to the process, Listening to the thread of its poller.
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/io/poller.h"

namespace agspeed::comm {

/// Rails on each of `numInterfaces` interfaces, so many that connections to all peers take at most half of the
/// descriptors that the process may open; at least 1.
int64_t flowsWithin(size_t numDescriptors, size_t numInterfaces, size_t numPeers);

/// How many descriptors the process may open once it has raised its limit as far as it may.
size_t mostDescriptors();

/// Room for connections over `numRails` rails to `numPeers` peers. While it lives the process may open at least twice
/// as many descriptors as all living rooms may take, so far as its limit can be raised. Thread-safe.
class DescriptorRoom {
 public:
  DescriptorRoom(size_t numRails, size_t numPeers);
  ~DescriptorRoom();
  DescriptorRoom(const DescriptorRoom&) = delete;

 private:
  const size_t numWanted_;
};

/// A listener in the poller. What it has no descriptor for stays in the kernel and would make it ready again and again:
/// it is left alone meanwhile.
class Listening {
 public:
  /// The descriptor stays the caller's.
  Listening(Poller& poller, int descriptor, Poller::Handler& handler);
  ~Listening();
  Listening(const Listening&) = delete;

  /// Accepting failed with this error. When there are no descriptors the handler is not called any more.
  void failed(int error);
  /// With every tick: the handler is called again.
  void resume();

 private:
  Poller& poller_;
  const int descriptor_;
  Poller::Handler& handler_;
  Poller::Id pollId_;
  bool isPaused_ = false;
  bool isWarned_ = false;
};

}  // namespace agspeed::comm

// SPDX-License-Identifier: Apache-2.0
// A descriptor that is always ready, and a record of its poller's reaction.
#pragma once

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "comm/io/poller.h"

namespace agspeed::comm::io {

/// A descriptor that is always ready.
class ReadyDescriptor final : public Poller::Handler {
 public:
  explicit ReadyDescriptor(Poller& poller) : poller_(poller), id_(poller.add(descriptor_, EPOLLIN, *this)) {}
  ~ReadyDescriptor() {
    poller_.remove(id_, descriptor_);
    close(descriptor_);
  }
  void ready(uint32_t) override {
    seenAt = Clock::now();
    ++numSeen;
  }

  Clock::time_point seenAt{};  ///< when the poller last reported the descriptor
  int numSeen = 0;

 private:
  Poller& poller_;
  const int descriptor_ = eventfd(1, EFD_CLOEXEC);
  const Poller::Id id_;
};

}  // namespace agspeed::comm::io

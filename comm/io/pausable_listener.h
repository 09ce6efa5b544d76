// SPDX-License-Identifier: Apache-2.0
// PausableListener: a listening descriptor in the poller. What it has no descriptor for stays in the kernel and would
// make it ready again and again: it is left alone meanwhile. One thread, the poller's.
#pragma once

#include "comm/io/poller.h"

namespace agspeed::comm {

class PausableListener {
 public:
  /// The descriptor stays the caller's.
  PausableListener(Poller& poller, int descriptor, Poller::Handler& handler);
  ~PausableListener();
  PausableListener(const PausableListener&) = delete;

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

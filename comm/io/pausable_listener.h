// SPDX-License-Identifier: Apache-2.0
// PausableListener: keeps a listening descriptor in the poller, except while the process has no free descriptors or
// memory. Without the pause, a connection that cannot be accepted would stay in the kernel's queue and wake the poller
// again and again. Only the poller's thread may use it.
#pragma once

#include "comm/io/poller.h"

namespace agspeed::comm::io {

class PausableListener {
 public:
  /// Adds the descriptor to the poller. The caller still owns it.
  PausableListener(Poller& poller, int descriptor, Poller::Handler& handler);
  ~PausableListener();
  PausableListener(const PausableListener&) = delete;

  /// Handles a failed accept() with this error: if descriptors or memory are exhausted, the listener pauses until
  /// resume().
  void failed(int error);
  /// Ends a pause, so that the handler is called again. Call it at every tick.
  void resume();

 private:
  Poller& poller_;
  const int descriptor_;
  Poller::Handler& handler_;
  Poller::Id pollId_;
  bool isPaused_ = false;
  bool isWarned_ = false;
};

}  // namespace agspeed::comm::io

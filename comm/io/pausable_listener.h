// SPDX-License-Identifier: Apache-2.0
// PausableListener: a listening descriptor in the poller that pauses while the process has no free descriptors. A
// connection that cannot be accepted stays in the kernel's queue and would make the listener ready again and again.
// One thread, the poller's.
#pragma once

#include "comm/io/poller.h"

namespace agspeed::comm {

class PausableListener {
 public:
  /// The caller keeps ownership of the descriptor.
  PausableListener(Poller& poller, int descriptor, Poller::Handler& handler);
  ~PausableListener();
  PausableListener(const PausableListener&) = delete;

  /// Reports that accepting failed with this error. If descriptors or memory are exhausted, it pauses until resume().
  void failed(int error);
  /// Ends a pause: the handler is called again. Called with every tick.
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

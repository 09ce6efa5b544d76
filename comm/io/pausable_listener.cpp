// SPDX-License-Identifier: Apache-2.0
#include "comm/io/pausable_listener.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/system_error.h"

namespace agspeed::comm::io {

PausableListener::PausableListener(Poller& poller, int descriptor, Poller::Handler& handler)
    : poller_(poller), descriptor_(descriptor), handler_(handler), pollId_(poller.add(descriptor, EPOLLIN, handler)) {}

PausableListener::~PausableListener() {
  if (!isPaused_) poller_.remove(pollId_, descriptor_);
}

void PausableListener::failed(int error) {
  constexpr std::array kShortages = {EMFILE, ENFILE, ENOBUFS, ENOMEM};
  if (std::find(kShortages.begin(), kShortages.end(), error) == kShortages.end()) return;
  isPaused_ = true;
  poller_.remove(pollId_, descriptor_);
  if (std::exchange(isWarned_, true)) return;
  AG_LOG(kWarn, "connections from peers have to wait, because accepting one failed: {}", describeError(error));
}

void PausableListener::resume() {
  if (!std::exchange(isPaused_, false)) return;
  pollId_ = poller_.add(descriptor_, EPOLLIN, handler_);
}

}  // namespace agspeed::comm::io

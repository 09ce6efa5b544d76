// SPDX-License-Identifier: Apache-2.0
// Watch: calls a function whenever a descriptor has events. Only the poller's thread may use it. The poller outlives
// it. The function may stop() the watch but not destroy it.
#pragma once

#include <functional>
#include <utility>

#include "comm/io/file_descriptor.h"
#include "comm/io/poller.h"

namespace agspeed::comm::io {

class Watch final : public Poller::Handler {
 public:
  Watch(Poller& poller, FileDescriptor descriptor, uint32_t events, std::function<void()> action)
      : poller_(poller),
        descriptor_(std::move(descriptor)),
        watched_(descriptor_.get()),
        action_(std::move(action)),
        id_(poller.add(watched_, events, *this)) {}
  /// Watches a descriptor that the caller owns and keeps open.
  Watch(Poller& poller, int descriptor, uint32_t events, std::function<void()> action)
      : poller_(poller), watched_(descriptor), action_(std::move(action)), id_(poller.add(watched_, events, *this)) {}
  ~Watch() { stop(); }

  const FileDescriptor& descriptor() const { return descriptor_; }
  void ready(uint32_t) override { action_(); }
  void stop() {
    if (std::exchange(isWatching_, false)) poller_.remove(id_, watched_);
  }

 private:
  Poller& poller_;
  const FileDescriptor descriptor_;
  const int watched_;
  const std::function<void()> action_;
  bool isWatching_ = true;
  Poller::Id id_;
};

}  // namespace agspeed::comm::io

// SPDX-License-Identifier: Apache-2.0
// CompletionQueue: holds transfers that have completed, with or without an error, until their owners are notified.
// Calls of Transfer::finished() do not nest: if a transfer completes within a finished(), the outermost notifyAll()
// notifies its owner afterwards. Not thread-safe.
#pragma once

#include <deque>
#include <memory_resource>
#include <utility>

#include "comm/messaging/messenger.h"

namespace agspeed::comm::messaging {

class CompletionQueue {
 public:
  /// Queues a transfer that has completed with `status`.
  void add(Transfer& transfer, Status status) { ended_.emplace_back(&transfer, std::move(status)); }
  /// Removes the transfer from the queue without notifying its owner. The caller notifies the owner itself.
  void drop(const Transfer& transfer) {
    std::erase_if(ended_, [&](const auto& entry) { return entry.first == &transfer; });
  }
  /// Calls finished() for all queued transfers. Returns false if the queue was empty, or if another notifyAll() is
  /// already running.
  bool notifyAll() {
    if (isNotifying_ || ended_.empty()) return false;
    isNotifying_ = true;
    while (!ended_.empty()) {
      const auto [transfer, status] = std::move(ended_.front());
      ended_.pop_front();
      transfer->finished(status);
    }
    isNotifying_ = false;
    return true;
  }

 private:
  std::pmr::unsynchronized_pool_resource pool_;  ///< avoids a heap allocation per transfer
  std::pmr::deque<std::pair<Transfer*, Status>> ended_{&pool_};
  bool isNotifying_ = false;
};

}  // namespace agspeed::comm::messaging

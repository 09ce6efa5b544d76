// SPDX-License-Identifier: Apache-2.0
// CompletionQueue: transfers that have ended and whose owners are not notified yet. Calls of finished() do not nest: if
// a transfer ends within a finished(), the outermost notifyAll() notifies its owner afterwards. Not thread-safe.
#pragma once

#include <deque>
#include <memory_resource>
#include <utility>

#include "comm/messaging/messenger.h"

namespace agspeed::comm {

class CompletionQueue {
 public:
  void add(Transfer& transfer, Status status) { ended_.emplace_back(&transfer, std::move(status)); }
  /// Removes the transfer; the caller notifies its owner.
  void drop(const Transfer& transfer) {
    std::erase_if(ended_, [&](const auto& entry) { return entry.first == &transfer; });
  }
  /// Notifies all owners. Returns: whether there were any; false within another notifyAll().
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

}  // namespace agspeed::comm

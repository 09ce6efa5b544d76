// SPDX-License-Identifier: Apache-2.0
// CompletionQueue: transfers that have ended and whose owners have yet to be notified. They are notified one after
// another, never within a finished() that ended them: what ends within one, the outermost notifyAll() tells. Not
// thread-safe.
#pragma once

#include <deque>
#include <memory_resource>
#include <utility>

#include "comm/messaging/messenger.h"

namespace agspeed::comm {

class CompletionQueue {
 public:
  void add(Transfer& transfer, Status status) { ended_.emplace_back(&transfer, std::move(status)); }
  /// Its owner is notified otherwise.
  void drop(const Transfer& transfer) {
    std::erase_if(ended_, [&](const auto& entry) { return entry.first == &transfer; });
  }
  /// Returns: whether there were any and no notifyAll() was under way.
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
  std::pmr::unsynchronized_pool_resource pool_;  ///< so that no transfer asks the heap for memory
  std::pmr::deque<std::pair<Transfer*, Status>> ended_{&pool_};
  bool isNotifying_ = false;
};

}  // namespace agspeed::comm

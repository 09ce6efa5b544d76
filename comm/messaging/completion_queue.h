// SPDX-License-Identifier: Apache-2.0
// CompletionQueue: transfers that have ended and whose owners have yet to hear of it. They hear one after another,
// never within a finished() that ended them: what that starts is told by whoever is telling. Not thread-safe.
#pragma once

#include <deque>
#include <utility>

#include "comm/messaging/messenger.h"

namespace agspeed::comm::framed {

class CompletionQueue {
 public:
  void add(Transfer& transfer, Status status) { ended_.emplace_back(&transfer, std::move(status)); }
  /// Its owner hears of its end otherwise.
  void drop(const Transfer& transfer) {
    std::erase_if(ended_, [&](const auto& entry) { return entry.first == &transfer; });
  }
  /// Tells all. Returns: whether there were any and nobody was telling already.
  bool tell() {
    if (isTelling_ || ended_.empty()) return false;
    isTelling_ = true;
    while (!ended_.empty()) {
      const auto [transfer, status] = std::move(ended_.front());
      ended_.pop_front();
      transfer->finished(status);
    }
    isTelling_ = false;
    return true;
  }

 private:
  std::deque<std::pair<Transfer*, Status>> ended_;
  bool isTelling_ = false;
};

}  // namespace agspeed::comm::framed

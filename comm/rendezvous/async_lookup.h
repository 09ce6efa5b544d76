// SPDX-License-Identifier: Apache-2.0
// AsyncLookup: reads a store on a separate thread. A store may block, for example because its server is stopped, and
// the thread that drives rails must not block then. The thread starts with the first look-up. While this thread waits
// for the store, new keys are collected. It then reads them with one call of the store's reader.
//
// Threading: only one thread at a time may call find(). Ownership: if the look-up thread is still blocked 100 ms after
// destruction began, it is detached and keeps the state that it uses.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "comm/rendezvous/store.h"

namespace agspeed::comm::rendezvous {

class AsyncLookup {
 public:
  using Result = StatusOr<std::optional<std::string>>;

  explicit AsyncLookup(Store::Reader reader);
  ~AsyncLookup();
  AsyncLookup(const AsyncLookup&) = delete;

  /// Looks up `key`. Returns: the store's answer, or nullopt while it has not answered; then call find() again. The
  /// first call for a key waits up to 2 ms for the answer, unless an earlier request is still unanswered.
  std::optional<Result> find(const std::string& key);

 private:
  struct Shared;
  static void run(const std::shared_ptr<Shared>& shared);

  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace agspeed::comm::rendezvous

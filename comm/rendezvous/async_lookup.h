// SPDX-License-Identifier: Apache-2.0
// AsyncLookup: reads a store on a thread of its own, because a store may block: its server may be stopped, and whoever
// drives rails must not stand still with it. The thread starts with the first lookup; keys that are wanted while it
// waits for the store go into one request.
//
// Threading: one thread at a time looks up. Ownership: a thread that is blocked when this is destroyed is left to
// itself, with all that it uses.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "comm/rendezvous/store.h"

namespace agspeed::comm {

class AsyncLookup {
 public:
  using Result = StatusOr<std::optional<std::string>>;

  explicit AsyncLookup(Store::Reader reader);
  ~AsyncLookup();
  AsyncLookup(const AsyncLookup&) = delete;

  /// What the store has under `key`, or nullopt while it has not answered: call again. A store that answers at once is
  /// waited for, but not behind one that is late already.
  std::optional<Result> find(const std::string& key);

 private:
  struct Shared;
  static void run(const std::shared_ptr<Shared>& shared);

  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace agspeed::comm

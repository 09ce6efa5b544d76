// SPDX-License-Identifier: Apache-2.0
// World: what all process groups of one job share in a process: rails to the other ranks, and the engine that drives
// them.
//
// The first group makes it and its subgroups use it; it ends with the last of them. Thread-safety: all functions, from
// any thread. Functions that talk to the store block.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "comm/c10d/torch_store.h"
#include "comm/collective/engine.h"
#include "comm/transport/network_messenger.h"

namespace agspeed::comm {

class World {
 public:
  /// Makes this process known under `rank`. `store` belongs to the job; worlds may follow each other in it.
  static StatusOr<std::shared_ptr<World>> create(const c10::intrusive_ptr<::c10d::Store>& store, int rank, int size);
  /// The living world that was made last, or null.
  static std::shared_ptr<World> current();

  int rank() const { return messenger_->rank(); }
  int size() const { return messenger_->size(); }
  Engine& engine() { return engine_; }

  /// A number for a new group of `members`, equal at all of them and of no other group: its first member takes it and
  /// tells the others through `groupStore`, which is the group's own.
  StatusOr<uint32_t> agreeOnId(TorchStore& groupStore, bool isFirst, std::chrono::milliseconds timeout);

 private:
  World(std::unique_ptr<TorchStore> store, std::unique_ptr<NetworkMessenger> messenger);

  std::unique_ptr<TorchStore> store_;
  std::unique_ptr<NetworkMessenger> messenger_;
  Engine engine_;
};

}  // namespace agspeed::comm

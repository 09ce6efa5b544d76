// SPDX-License-Identifier: Apache-2.0
// World: what all process groups of one job share in a process: rails to the other ranks, and the engine that drives
// them.
//
// Whoever makes it first keeps it for all groups of the process; it ends with the last of them. Knows no frontend.
// Thread-safety: all functions, from any thread. Functions that talk to the store block.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/engine/engine.h"
#include "comm/network/network_messenger.h"
#include "comm/rendezvous/store.h"
#include "comm/world/flight_record.h"

namespace agspeed::comm {

/// One rank's view of a group that is being made.
struct NewGroup {
  std::string name;  ///< for people
  int rank = 0;      ///< of this process in the group
  std::chrono::milliseconds timeout{0};
};

class World {
 public:
  /// Meets the other ranks in the job's store and makes this process known to them under `rank`. Worlds of any sizes
  /// may follow each other in one store, also after ranks have ended and were started again (agreement.h). The call
  /// asks the store again and again while it waits: give it a connection of its own where there can be one. Fails as
  /// exhausted where a rank is missing after `timeout`.
  static StatusOr<std::shared_ptr<World>> create(const std::shared_ptr<Store>& jobStore, int rank, int size,
                                                 std::chrono::milliseconds timeout = std::chrono::minutes(30));
  /// Opens what a rank of this environment would, for this process alone, and says what it is.
  static StatusOr<std::string> describeAlone();
  /// The world of the living default group, whose ranks are the job's; null where that group has another backend.
  static std::shared_ptr<World> ofDefaultGroup();
  static void setOfDefaultGroup(const std::shared_ptr<World>& world);

  /// Whether this process was forked after the world was made. The engine's threads are missing here, and the
  /// connections are the parent's: nothing of the world may be used, and nothing that belongs to it may be destroyed.
  /// The world leaves itself in place when its last owner lets go of it.
  bool isForked() const;

  int rank() const { return messenger_->rank(); }
  int size() const { return messenger_->size(); }
  Engine& engine() { return engine_; }
  const std::shared_ptr<FlightRecorder>& recorder() const { return recorder_; }
  /// What was sent and received so far (counters.h).
  std::string countersJson();

  /// A number for a new group, equal at all of its members and of no other group: its rank 0 takes it and tells the
  /// others in `store` under `key`, which no other group uses. Fails as exhausted where it has not after `timeout`.
  StatusOr<uint32_t> agreeOnId(Store& store, const std::string& key, const NewGroup& group);
  /// The job's, for keys of this world.
  Store& store() { return *store_; }
  /// Another store, for keys of this world.
  PrefixStore within(std::shared_ptr<Store> store) const { return {std::move(store), prefix_}; }

 private:
  /// Deletes the world; on a thread of its own where the last group went in a callback, which the engine waits for.
  static void end(World* world);
  World(std::string prefix, std::unique_ptr<Store> store, std::unique_ptr<NetworkMessenger> messenger);

  const pid_t process_;  ///< in which it was made
  const std::shared_ptr<FlightRecorder> recorder_;
  const std::string prefix_;  ///< of this world's keys in any store
  const std::unique_ptr<Store> store_;
  std::unique_ptr<NetworkMessenger> messenger_;
  Engine engine_;
};

}  // namespace agspeed::comm

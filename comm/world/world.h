// SPDX-License-Identifier: Apache-2.0
// World: the parts that all process groups of one job share in a process: rails to the other ranks, and the engine that
// drives them.
//
// The first group of the process makes the world. All groups share its ownership, so it is destroyed with the last
// group. This class does not depend on the frontends of comm. Thread-safety: any thread may call all functions.
// Functions that use a store block.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/engine/engine.h"
#include "comm/network/network_messenger.h"
#include "comm/rendezvous/store.h"
#include "comm/world/flight_record.h"

namespace agspeed::comm::world {

class InspectionPoint;

/// One rank's view of a group that is being made.
struct NewGroup {
  std::string name;  ///< the group's name in errors
  int rank = 0;      ///< the rank of this process in the group
  std::chrono::milliseconds timeout{0};
};

class World {
 public:
  /// Makes a world: publishes this process under `rank` in the job's store, and finds the other ranks there. Worlds of
  /// any sizes may follow each other in one store, also after ranks have ended and were started again (agreement.h).
  /// The call polls the store while it waits, so pass a store with a separate connection if possible. Fails as resource
  /// exhausted if a rank is missing after `timeout`.
  static StatusOr<std::shared_ptr<World>> create(const std::shared_ptr<rendezvous::Store>& jobStore, int rank, int size,
                                                 std::chrono::milliseconds timeout = std::chrono::minutes(30));
  /// Opens the rails that a rank in this environment would open, for this process alone, and describes them.
  static StatusOr<std::string> describeAlone();
  /// Returns the world of torch's default group, which contains all ranks of the job. Returns null if there is no
  /// default group or if it has another backend.
  static std::shared_ptr<World> ofDefaultGroup();
  static void setOfDefaultGroup(const std::shared_ptr<World>& world);

  /// Whether this process was forked after the world was made. A forked process lacks the engine's threads, and the
  /// connections belong to its parent, so it must neither use nor destroy any part of the world. If the last owner in a
  /// forked process releases the world, the world is not deleted.
  bool isForked() const;

  int rank() const { return messenger_->rank(); }
  int size() const { return messenger_->size(); }
  engine::Engine& engine() { return engine_; }
  const std::shared_ptr<FlightRecorder>& recorder() const { return recorder_; }
  /// Returns the counters of sent and received data (counters.h).
  std::string countersJson();

  /// Agrees with the other members of a new group on a number that no other group has. The group's rank 0 takes a
  /// number and publishes it in `store` under `key`, which no other group may use. Fails as resource exhausted if rank
  /// 0 has not published the number after the group's timeout.
  StatusOr<uint32_t> agreeOnId(rendezvous::Store& store, const std::string& key, const NewGroup& group);
  /// Returns the job's store, restricted to keys of this world.
  rendezvous::Store& store() { return *store_; }
  /// Returns `store`, restricted to keys of this world.
  rendezvous::PrefixStore within(std::shared_ptr<rendezvous::Store> store) const { return {std::move(store), prefix_}; }

 private:
  /// Deletes the world, except in a forked process. Uses a separate thread if the caller is a thread of the engine or
  /// of the inspection point, because the destructor joins these threads.
  static void end(World* world);
  ~World();
  World(std::string prefix, std::unique_ptr<rendezvous::Store> store,
        std::unique_ptr<network::NetworkMessenger> messenger, std::string job);
  std::unique_ptr<InspectionPoint> openInspectionPoint(std::string job);

  const uint64_t processMark_;  ///< processMark() of the process that made the world
  const std::shared_ptr<FlightRecorder> recorder_;
  const std::string prefix_;  ///< prefix of this world's keys in any store
  const std::unique_ptr<rendezvous::Store> store_;
  std::unique_ptr<network::NetworkMessenger> messenger_;
  engine::Engine engine_;
  /// Null if the system could not make an inspection point. It must be the last member, because its thread uses the
  /// other members.
  const std::unique_ptr<InspectionPoint> inspectionPoint_;
};

}  // namespace agspeed::comm::world

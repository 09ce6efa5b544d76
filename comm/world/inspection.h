// SPDX-License-Identifier: Apache-2.0
// Describes what one rank has in flight, as the JSON document that `agspeed comm inspect` reads and compares with the
// documents of other ranks (python/agspeed/inspection). The document contains only values that the parts of comm keep
// for their own work.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/engine/engine.h"
#include "comm/network/network_messenger.h"
#include "comm/world/flight_record.h"

namespace agspeed::comm::world {

/// A rank, and the world that it belongs to.
struct WorldIdentity {
  int rank = 0;
  int size = 1;
  std::string job;  ///< a text that all ranks of the world have, and no other world; empty: not agreed yet
};

/// Returns the frames of the main thread, the innermost first: "train.py:12 in step". Empty: they cannot be read now.
using StackReader = std::function<std::vector<std::string>()>;
/// Sets the function that reads the stack of the main thread for the documents of this process. A frontend with an
/// interpreter, such as Python's, calls it once.
void setStackReader(StackReader reader);

/// Describes a rank that has waited since `since` for other ranks to join the world.
std::string joiningJson(const WorldIdentity& identity, io::Clock::time_point since);
/// Describes a rank that has a world. If the driver does not answer in time, the document says only that the driver is
/// busy. Requires: the caller is not the driver.
std::string inspectionJson(const WorldIdentity& identity, engine::Engine& engine,
                           const network::NetworkMessenger& messenger, FlightRecorder& recorder);

}  // namespace agspeed::comm::world

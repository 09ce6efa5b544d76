// SPDX-License-Identifier: Apache-2.0
// Makes named groups of the ranks of a world.
#pragma once

#include <memory>

#include "comm/named/named_group.h"
#include "comm/world/world.h"
#include "runtime/base/status.h"

namespace agspeed::comm::world {

/// Makes the NamedGroup of `options.group.members`, which are ranks of the world. All members call this function, and
/// agree over the world's store on the ids of the group's messages. `options.group.name` is the prefix of the group's
/// keys in the store, and its name in errors. It must be the same at all members, and no earlier group may have used
/// it. The world outlives the group. Errors: invalid argument if this rank is not a member; resource exhausted if a
/// member is missing after `options.group.timeout`.
StatusOr<std::unique_ptr<named::NamedGroup>> createNamedGroup(World& world, named::NamedOptions options);

}  // namespace agspeed::comm::world

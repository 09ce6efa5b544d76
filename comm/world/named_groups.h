// SPDX-License-Identifier: Apache-2.0
// Makes named groups of the ranks of a world.
#pragma once

#include <memory>

#include "comm/named/named_group.h"
#include "comm/world/world.h"
#include "runtime/base/status.h"

namespace agspeed::comm::world {

/// Makes the NamedGroup of `options.group.members`, which are ranks of the world. All members call it, and agree over
/// the world's store on the ids of its messages. `options.group.name` is the prefix of their keys there, and the
/// group's name in errors; it must be the same at all members, and new. The world outlives the group.
/// Errors: invalid argument if this rank is not a member; resource exhausted if a member is missing after
/// `options.group.timeout`.
StatusOr<std::unique_ptr<named::NamedGroup>> createNamedGroup(World& world, named::NamedOptions options);

}  // namespace agspeed::comm::world

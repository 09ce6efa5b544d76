// SPDX-License-Identifier: Apache-2.0
#include "comm/world/named_groups.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

namespace agspeed::comm::world {

StatusOr<std::unique_ptr<named::NamedGroup>> createNamedGroup(World& world, named::NamedOptions options) {
  const collective::GroupOptions& group = options.group;
  const auto own = std::find(group.members.begin(), group.members.end(), world.rank());
  if (own == group.members.end()) {
    return invalidArgument("rank {} is not a member of the group '{}' that it makes", world.rank(), group.name);
  }
  const NewGroup made{.name = group.name,
                      .rank = static_cast<int>(own - group.members.begin()),
                      .timeout = std::chrono::duration_cast<std::chrono::milliseconds>(group.timeout)};
  AG_ASSIGN_OR_RETURN(options.group.id, world.agreeOnId(world.store(), group.name + "/data", made));
  AG_ASSIGN_OR_RETURN(options.messageId, world.agreeOnId(world.store(), group.name + "/messages", made));
  return named::NamedGroup::create(world.engine(), std::move(options));
}

}  // namespace agspeed::comm::world

// SPDX-License-Identifier: Apache-2.0
// NewMembers: the members of a group that is made anew, and how they agree that all of them mean the same group.
//
// Each process has a handle, a text that no other process has. The processes exchange their handles by means of their
// own, for example through a scheduler. Then all members make one group of the same list of handles, whose order
// numbers the ranks. A number (uuid) identifies the group, so that a store may serve any groups, one after another or
// at once.
//
// Thread-safe if the store is; blocks as its functions do.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/rendezvous/store.h"

namespace agspeed::comm::world {

struct NewMembers {
  int64_t uuid = 0;                  ///< a number that no other group in the store has had
  std::vector<std::string> handles;  ///< of all members, by rank
  std::string own;                   ///< the handle of this process
};

/// Returns a new handle. It names this store, too.
StatusOr<std::string> makeHandle(rendezvous::Store& store);

/// Checks the members, and claims the uuid for them. Returns: the rank of this process. Fails as invalid argument if
/// the handles are wrong, and claims nothing then. Fails as unavailable if the uuid was used before, or is used for
/// other members.
StatusOr<int> claimRank(rendezvous::Store& store, const NewMembers& members);

/// Returns the prefix of all keys of the group with this uuid.
std::string groupPrefix(int64_t uuid);

}  // namespace agspeed::comm::world

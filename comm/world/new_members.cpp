// SPDX-License-Identifier: Apache-2.0
#include "comm/world/new_members.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <string_view>

#include "comm/security/keys.h"
#include "runtime/base/format.h"

namespace agspeed::comm::world {
namespace {

constexpr size_t kStoreBytes = 8, kProcessBytes = 8;
constexpr std::string_view kHexadecimal = "0123456789abcdef";

/// Returns the name of the store: the same for all processes, and another one for each store.
StatusOr<std::string> nameOf(rendezvous::Store& store) {
  const std::string own = security::randomDigits(kStoreBytes);
  AG_ASSIGN_OR_RETURN(std::string name, store.setOnce("agspeed/store", own));
  if (name.size() != own.size() || name.find_first_not_of(kHexadecimal) != std::string::npos) {
    return dataLoss("the store's name is '{}', not {} hexadecimal digits", name, own.size());
  }
  return name;
}

std::string beginOf(const std::string& storeName) { return formatText("agspeed:{}:", storeName); }

/// Returns a text that differs for other lists of handles, and that fits into a value of the store.
std::string digestOf(const std::vector<std::string>& handles) {
  std::string all;
  for (const std::string& each : handles) all += each + "\n";
  const security::Digest digest = security::hmacSha256(security::bytesOf("agspeed members"), security::bytesOf(all));
  return security::digitsOf(digest);
}

/// Checks the handles, and returns the rank of this process.
StatusOr<int> rankOf(const NewMembers& members, const std::string& begin) {
  const std::vector<std::string>& handles = members.handles;
  if (handles.empty()) return invalidArgument("there is no handle: pass the handles of all members");
  for (const std::string& each : handles) {
    if (each.starts_with(begin) && each.size() == begin.size() + 2 * kProcessBytes) continue;
    const bool isOurs = each.starts_with("agspeed:");
    return invalidArgument("the handle '{}' {}", each.substr(0, members.own.size()),
                           isOurs ? "comes from a process with another store; all members need one store"
                                  : "comes from another backend; all members need the backend agspeed");
  }
  const std::set<std::string> different(handles.begin(), handles.end());
  if (different.size() != handles.size()) {
    return invalidArgument("{} of {} handles are repeated; pass one handle for each member",
                           handles.size() - different.size(), handles.size());
  }
  const auto own = std::find(handles.begin(), handles.end(), members.own);
  if (own == handles.end()) {
    return invalidArgument("the handle of this process, '{}', is not among the {} handles", members.own,
                           handles.size());
  }
  return static_cast<int>(own - handles.begin());
}

}  // namespace

StatusOr<std::string> makeHandle(rendezvous::Store& store) {
  AG_ASSIGN_OR_RETURN(const std::string name, nameOf(store));
  return beginOf(name) + security::randomDigits(kProcessBytes);
}

StatusOr<int> claimRank(rendezvous::Store& store, const NewMembers& members) {
  AG_ASSIGN_OR_RETURN(const std::string name, nameOf(store));
  AG_ASSIGN_OR_RETURN(const int rank, rankOf(members, beginOf(name)));
  const std::string prefix = groupPrefix(members.uuid), digest = digestOf(members.handles);
  AG_ASSIGN_OR_RETURN(const std::string claimed, store.setOnce(prefix + "members", digest));
  if (claimed != digest) {
    return unavailable(
        "the uuid {} was already used for other members; all members pass the same handles in the same order, and a "
        "uuid that no group has had",
        members.uuid);
  }
  AG_ASSIGN_OR_RETURN(const int64_t numClaims, store.add(formatText("{}rank/{}", prefix, rank), 1));
  if (numClaims > 1) return unavailable("the uuid {} was already used; pass one that no group has had", members.uuid);
  return rank;
}

std::string groupPrefix(int64_t uuid) { return formatText("agspeed/group/{}/", uuid); }

}  // namespace agspeed::comm::world

// SPDX-License-Identifier: Apache-2.0
// RankNames: the names of a group's ranks in errors and log lines. A rank is "rank 3" unless a name was set, for
// example "process 4242 on node1" in a group whose numbers the user does not know.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "runtime/base/format.h"

namespace agspeed::comm::rendezvous {

class RankNames {
 public:
  void set(int rank, std::string name) { names_[rank] = std::move(name); }
  std::string of(int rank) const {
    const auto found = names_.find(rank);
    return found != names_.end() ? found->second : formatText("rank {}", rank);
  }

  /// Whether the log may name peers. The log must not name them when the group is not used any more: a peer may have
  /// ended, and another process may use its ports.
  bool areLogged() const { return areLogged_; }
  void setLogged(bool areLogged) { areLogged_ = areLogged; }

 private:
  std::map<int, std::string> names_;
  bool areLogged_ = true;
};

}  // namespace agspeed::comm::rendezvous

// SPDX-License-Identifier: Apache-2.0
#include "comm/plan/local_groups.h"

#include <algorithm>

namespace agspeed::comm::plan {

namespace {

/// The number of chunks that leave a local group, for each algorithm. A chunk of wide elements counts twice.
struct Crossings {
  int hierarchical = 0;
  int direct = 0;
};

/// Counts the chunks that leave `group` while contributions are reduced. `wideSize`: what a wide chunk counts as.
Crossings reducing(const schedule::LocalGroups& groups, int group, int wideSize) {
  int numPartials = 0;
  for (const schedule::RankRange& ranks : groups.subtrees(group)) numPartials += ranks.count > 1 ? wideSize : 1;
  const int size = groups.ranks(group).count, numOthers = groups.numRanks() - size;
  return {numPartials * numOthers, size * numOthers};
}

/// Counts the chunks that leave `group` while results are gathered.
Crossings gathering(const schedule::LocalGroups& groups, int group) {
  const int size = groups.ranks(group).count;
  return {size * (groups.numGroups() - 1), size * (groups.numRanks() - size)};
}

}  // namespace

std::vector<int> localGroupsOf(std::span<const uint32_t> hosts) {
  if (hosts.empty() || std::count(hosts.begin(), hosts.end(), 0u) > 0) return {};
  std::vector<int> firstRanks;
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    if (rank == 0 || hosts[rank] != hosts[rank - 1]) firstRanks.push_back(static_cast<int>(rank));
  }
  return firstRanks.size() == 1 || firstRanks.size() == hosts.size() ? std::vector<int>() : firstRanks;
}

bool gainsFromLocalGroups(schedule::Collective collective, bool isWidened, const schedule::LocalGroups& groups) {
  Crossings most;
  for (int group = 0; group < groups.numGroups(); ++group) {
    Crossings own;
    if (isReduction(collective)) own = reducing(groups, group, isWidened ? 2 : 1);
    if (collective != schedule::Collective::kReduceScatter) {
      const Crossings gathered = gathering(groups, group);
      own = {own.hierarchical + gathered.hierarchical, own.direct + gathered.direct};
    }
    most = {std::max(most.hierarchical, own.hierarchical), std::max(most.direct, own.direct)};
  }
  return most.hierarchical < most.direct;
}

}  // namespace agspeed::comm::plan

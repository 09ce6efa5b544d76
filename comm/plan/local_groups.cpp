// SPDX-License-Identifier: Apache-2.0
#include "comm/plan/local_groups.h"

#include <algorithm>
#include <cstddef>

namespace agspeed::comm::plan {

int localGroupSizeOf(std::span<const uint32_t> hosts) {
  if (std::count(hosts.begin(), hosts.end(), 0u) > 0) return 1;
  size_t boundaries = 0;  // bitwise or of all ranks that begin a new host
  for (size_t rank = 1; rank < hosts.size(); ++rank) boundaries |= hosts[rank] != hosts[rank - 1] ? rank : 0;
  if (boundaries == 0) return 1;
  boundaries |= hosts.size();
  return static_cast<int>(boundaries & (~boundaries + 1));
}

bool gainsFromLocalGroups(schedule::Collective collective, bool isWidened, int localGroupSize) {
  return localGroupSize > (collective == schedule::Collective::kReduceScatter && isWidened ? 2 : 1);
}

}  // namespace agspeed::comm::plan

// SPDX-License-Identifier: Apache-2.0
// The tables that suites run on: NCCL's own, and all versions of ours.
#pragma once

#include <string>
#include <vector>

#include "tests/comm/nccl_net/net_table.h"

namespace agspeed::comm::nccl {

inline TableSource ourTable(int version) {
  return {"agspeed_v" + std::to_string(version), AG_NCCL_NET_LIBRARY, version};
}
inline TableSource ncclSocket() { return {"nccl_socket", findNccl(), 0}; }

inline std::vector<TableSource> allSources() {
  std::vector<TableSource> sources = {ncclSocket()};
  for (int version = 6; version <= 12; ++version) sources.push_back(ourTable(version));
  return sources;
}

}  // namespace agspeed::comm::nccl

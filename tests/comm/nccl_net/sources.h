// SPDX-License-Identifier: Apache-2.0
// The tables that suites run on: NCCL's own.
#pragma once

#include <vector>

#include "tests/comm/nccl_net/net_table.h"

namespace agspeed::comm::nccl {

inline std::vector<TableSource> allSources() { return {{"nccl_socket", findNccl(), 0}}; }

}  // namespace agspeed::comm::nccl

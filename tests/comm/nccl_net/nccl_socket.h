// SPDX-License-Identifier: Apache-2.0
// NCCL's own socket transport, without a GPU: its table is a hidden symbol of libnccl.so.2, found in the file's symbol
// table; the two functions of it that ask for the current device are answered with device 0 by overwriting the first
// bytes of `cudaGetDevice` of the runtime inside that library, in this process's memory. For x86-64.
#pragma once

#include <string>

#include "tests/comm/nccl_net/net_table.h"

namespace agspeed::comm::nccl {

LoadedTable loadNcclSocket(const std::string& library);

}  // namespace agspeed::comm::nccl

// SPDX-License-Identifier: Apache-2.0
// NCCL's own socket transport, without a GPU. Its table is a hidden symbol of libnccl.so.2, found in the file's symbol
// table. Two of its functions ask for the current device. They get device 0, because the first bytes of `cudaGetDevice`
// in that library's CUDA runtime are overwritten in this process's memory. x86-64 only.
#pragma once

#include <string>

#include "tests/comm/nccl_net/net_table.h"

namespace agspeed::comm::nccl {

LoadedTable loadNcclSocket(const std::string& library);

}  // namespace agspeed::comm::nccl

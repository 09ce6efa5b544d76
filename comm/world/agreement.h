// SPDX-License-Identifier: Apache-2.0
// Numbers that ranks agree on through a store before they are connected.
//
// A store may outlive the processes that wrote to it: torchrun keeps one while it restarts the ranks, and a rank may
// end before it writes to the store. So ranks can rely neither on counting their own starts nor on the keys they find:
//
//   rank 0            takes the next epoch number for worlds of its size and offers it
//   every other rank  joins the offered epoch, unless that epoch is complete: then it belongs to an earlier world
//   rank 0            declares the epoch complete when all ranks have joined it
//   every other rank  has agreed when the epoch that it joined is complete; if a new process becomes rank 0 before that
//                     and offers another epoch, the rank joins that one instead
//
// Requires: one process per rank at a time. Thread-safe if the store is; blocks.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "comm/rendezvous/store.h"

namespace agspeed::comm {

/// The number of a new world of `size` ranks. It is equal at all of its ranks, and no other world of this size in the
/// store has it. Resource exhausted: a rank is missing at `deadline`; the message names it.
StatusOr<uint32_t> agreeOnEpoch(Store& store, int rank, int size, std::chrono::steady_clock::time_point deadline);

/// Parses `text`, the store's value of `key`, as a number. Data loss: it is not a number.
StatusOr<uint32_t> numberIn(const std::string& key, const std::string& text);

}  // namespace agspeed::comm

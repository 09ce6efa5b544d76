// SPDX-License-Identifier: Apache-2.0
// Functions with which ranks agree on numbers through a store before they are connected.
//
// Each world has a number, its epoch. A store may outlive the processes that wrote to it: torchrun keeps a store while
// it restarts the ranks. And a rank may end before it writes to the store. So a rank can neither count its own starts
// nor trust the keys that it finds. Instead:
//
//   rank 0            takes the next epoch number for worlds of its size and offers it
//   every other rank  joins the offered epoch, unless this epoch is complete. A complete epoch belongs to an earlier
//                     world
//   rank 0            declares the epoch complete when all ranks have joined it
//   every other rank  has agreed when the epoch that it joined is complete. If a new process becomes rank 0 before
//                     that and offers another epoch, the rank joins this new epoch instead
//
// Requires: one process per rank at a time. Thread-safe if the store is thread-safe. The functions block.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "comm/rendezvous/store.h"

namespace agspeed::comm::world {

/// Agrees on the number (epoch) of a new world of `size` ranks. All ranks of the world get the same number, and no
/// other world of this size in the store has it. Fails as resource exhausted if a rank is missing at `deadline`; the
/// error names the rank.
StatusOr<uint32_t> agreeOnEpoch(rendezvous::Store& store, int rank, int size,
                                std::chrono::steady_clock::time_point deadline);

/// Parses `text`, the store's value of `key`, as a number. Fails with data loss if the text is not a number.
StatusOr<uint32_t> numberIn(const std::string& key, const std::string& text);

}  // namespace agspeed::comm::world

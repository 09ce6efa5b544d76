// SPDX-License-Identifier: Apache-2.0
// Numbers that ranks agree on through a store before they are connected.
//
// A store may outlive the processes that wrote to it: torchrun keeps one while it restarts the ranks, and a rank may
// end before it comes to the store at all. So no rank trusts what it counts, nor what it finds:
//
//   rank 0            takes the next epoch of worlds of its size and offers it
//   every other rank  joins the epoch that is offered, unless it is complete: then it is an earlier world's
//   rank 0            declares the epoch complete when all ranks have joined it
//   every other rank  has agreed when the epoch that it has joined is complete; it joins another one that is offered
//                     in its place, because a new process is rank 0
//
// Requires: one process per rank at a time. Thread-safe where the store is; blocks.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "comm/rendezvous/store.h"

namespace agspeed::comm {

/// The number of a new world of `size` ranks, equal at all of them and of no other world of this size in the store.
/// Fails as exhausted where a rank is missing at `deadline`; the sentence names it.
StatusOr<uint32_t> agreeOnEpoch(Store& store, int rank, int size, std::chrono::steady_clock::time_point deadline);

/// The number that `text` is, the store's value of `key`; data loss where it is none.
StatusOr<uint32_t> numberIn(const std::string& key, const std::string& text);

}  // namespace agspeed::comm

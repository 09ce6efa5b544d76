// SPDX-License-Identifier: Apache-2.0
// The store through which the ranks of a job find each other if no framework provides one. Thread-safe. The function
// blocks.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "comm/rendezvous/store.h"

namespace agspeed::comm::world {

/// Opens the job's store, named by a text that is the same at all ranks:
///   "file:FOLDER"    a folder that exists, that all ranks can write to, and that belongs to this job alone
///   "tcp:HOST:PORT"  an address of rank 0's host. Rank 0 serves the store there as long as its Store object lives;
///                    this needs a job key
/// The other ranks wait for rank 0 until `deadline`. Fails as invalid argument if the text has neither form, or if the
/// job key is missing or differs from rank 0's.
StatusOr<std::shared_ptr<rendezvous::Store>> openRendezvousStore(const std::string& where, int rank, int size,
                                                                 std::chrono::steady_clock::time_point deadline);

}  // namespace agspeed::comm::world

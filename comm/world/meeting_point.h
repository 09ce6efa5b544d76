// SPDX-License-Identifier: Apache-2.0
// Where the ranks of a job find each other without a framework's store. Thread-safe; blocks.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "comm/rendezvous/store.h"

namespace agspeed::comm {

/// The job's store, by a text that is the same at all ranks:
///   "file:FOLDER"    a folder that exists, all ranks can write to, and belongs to this job
///   "tcp:HOST:PORT"  an address of rank 0's host, where rank 0 serves it as long as its store lives; needs a job key
/// Other ranks wait for rank 0 until `deadline`. Invalid argument: another text, or a key that is missing or another.
StatusOr<std::shared_ptr<Store>> meetAt(const std::string& where, int rank, int size,
                                        std::chrono::steady_clock::time_point deadline);

}  // namespace agspeed::comm

// SPDX-License-Identifier: Apache-2.0
// Doorbell: how a rank that waits is told that something for it has been written to shared memory. The rank says when
// it sleeps; only then does ringing cost a system call, and only the first ring. Whoever rings has written before; the
// rank looks once more after saying that it sleeps. Both are sequentially consistent, so one of them sees the other.
//
// The owner uses its bell from one thread at a time; any number of processes may ring it.
#pragma once

#include <atomic>
#include <cstdint>

#include "comm/transport/shm/shared_memory.h"

namespace agspeed::comm::shm {

class Doorbell {
 public:
  /// This rank's own.
  static StatusOr<Doorbell> create();
  /// Another rank's, from what was handed over.
  static StatusOr<Doorbell> open(const FileDescriptor& page, FileDescriptor bell);

  /// To hand over; of an own one.
  int page() const { return page_.descriptor().get(); }
  /// An eventfd; becomes readable with each ring of a sleeper, whether or not it was read (for edge-triggered polling).
  int bell() const { return bell_.get(); }

  void setSleeping(bool isSleeping) { flag().store(isSleeping ? 1 : 0); }
  /// Wakes the owner if it sleeps. Returns: whether it did.
  bool ring();

 private:
  Doorbell(SharedMemory page, FileDescriptor bell) : page_(std::move(page)), bell_(std::move(bell)) {}
  std::atomic<uint32_t>& flag() const { return *reinterpret_cast<std::atomic<uint32_t>*>(page_.data()); }

  SharedMemory page_;
  FileDescriptor bell_;
};

}  // namespace agspeed::comm::shm

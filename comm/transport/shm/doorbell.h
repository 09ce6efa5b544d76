// SPDX-License-Identifier: Apache-2.0
// Doorbell (short: bell): wakes a sleeping rank when another process has written to shared memory for it. It is a flag
// in shared memory and an eventfd. The rank sets the flag before it sleeps. ring() costs a system call only while the
// flag is set, and the first ring() clears the flag. The writer writes first and then reads the flag. The rank sets the
// flag first and then polls the memory once more. These accesses are sequentially consistent, so at least one of the
// two processes sees the write of the other.
//
// The owner uses its bell from one thread at a time. Any number of processes may ring it.
#pragma once

#include <atomic>
#include <cstdint>

#include "comm/transport/shm/shared_memory.h"

namespace agspeed::comm::shm {

class Doorbell {
 public:
  /// Creates this rank's own bell.
  static StatusOr<Doorbell> create();
  /// Opens another rank's bell from the descriptors that it sent.
  static StatusOr<Doorbell> open(const io::FileDescriptor& page, io::FileDescriptor bell);

  /// Returns the descriptor of the flag's memory, to be sent to a peer. Only for this rank's own bell.
  int page() const { return page_.descriptor().get(); }
  /// Returns the eventfd. Each ring() that wakes the owner is an event for edge-triggered polling, even if the eventfd
  /// has not been read since the last one.
  int bell() const { return bell_.get(); }

  /// Sets or clears the flag. While it is set, writers ring after they have written.
  void setSleeping(bool isSleeping) { flag().store(isSleeping ? 1 : 0); }
  /// Wakes the owner if it sleeps. Returns false if it did not sleep.
  bool ring();

 private:
  Doorbell(SharedMemory page, io::FileDescriptor bell) : page_(std::move(page)), bell_(std::move(bell)) {}
  std::atomic<uint32_t>& flag() const { return *reinterpret_cast<std::atomic<uint32_t>*>(page_.data()); }

  SharedMemory page_;
  io::FileDescriptor bell_;
};

}  // namespace agspeed::comm::shm

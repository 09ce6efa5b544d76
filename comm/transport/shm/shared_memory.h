// SPDX-License-Identifier: Apache-2.0
// Memory that two processes share. It has no name: the process that makes it sends its descriptor to the other process.
// The kernel frees it when neither process maps it any more. It is in no file system, so the size of /dev/shm does not
// matter. Each object belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "comm/io/file_descriptor.h"
#include "runtime/base/status.h"

namespace agspeed::comm::shm {

class SharedMemory {
 public:
  /// Creates zeroed memory whose size no process can change.
  static StatusOr<SharedMemory> create(size_t size);
  /// Maps memory that another process has created. Fails as invalid argument if the memory does not have this size, or
  /// if its size can be changed.
  static StatusOr<SharedMemory> open(const io::FileDescriptor& descriptor, size_t size);
  ~SharedMemory();
  SharedMemory(SharedMemory&& other) noexcept
      : bytes_(std::exchange(other.bytes_, {})), descriptor_(std::move(other.descriptor_)) {}
  SharedMemory& operator=(SharedMemory&&) = delete;

  std::byte* data() const { return bytes_.data(); }
  /// Returns the descriptor to send to the other process. Only for memory from create(), before dropDescriptor().
  const io::FileDescriptor& descriptor() const { return descriptor_; }
  /// Closes the descriptor. The memory stays mapped.
  void dropDescriptor() { descriptor_ = io::FileDescriptor(); }

 private:
  SharedMemory(std::span<std::byte> bytes, io::FileDescriptor descriptor)
      : bytes_(bytes), descriptor_(std::move(descriptor)) {}

  std::span<std::byte> bytes_;
  io::FileDescriptor descriptor_;
};

}  // namespace agspeed::comm::shm

// SPDX-License-Identifier: Apache-2.0
// Memory that two processes see: made without a name, handed over as a descriptor, gone when the last of them has
// ended. It lies in no file system, so the size of /dev/shm does not matter. Each object belongs to one thread at a
// time.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "comm/io/file_descriptor.h"
#include "runtime/base/status.h"

namespace agspeed::comm::shm {

class SharedMemory {
 public:
  /// Zeroed memory whose size nobody can change.
  static StatusOr<SharedMemory> create(size_t size);
  /// Memory of another process; an invalid argument unless it is like that of create().
  static StatusOr<SharedMemory> open(const FileDescriptor& descriptor, size_t size);
  ~SharedMemory();
  SharedMemory(SharedMemory&& other) noexcept
      : bytes_(std::exchange(other.bytes_, {})), descriptor_(std::move(other.descriptor_)) {}
  SharedMemory& operator=(SharedMemory&&) = delete;

  std::byte* data() const { return bytes_.data(); }
  /// To hand over. Only of memory that create() made, until it was dropped.
  const FileDescriptor& descriptor() const { return descriptor_; }
  /// The memory stays.
  void dropDescriptor() { descriptor_ = FileDescriptor(); }

 private:
  SharedMemory(std::span<std::byte> bytes, FileDescriptor descriptor)
      : bytes_(bytes), descriptor_(std::move(descriptor)) {}

  std::span<std::byte> bytes_;
  FileDescriptor descriptor_;
};

}  // namespace agspeed::comm::shm

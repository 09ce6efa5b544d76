// SPDX-License-Identifier: Apache-2.0
// Memory that two processes see: made without a name, handed over as a descriptor, gone when the last of them has
// ended. It lies in no file system, so the size of /dev/shm does not matter. Each object belongs to one thread at a
// time.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "runtime/base/status.h"

namespace agspeed::comm::shm {

/// A file descriptor that closes itself.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }

  int get() const { return value_; }
  bool isOpen() const { return value_ >= 0; }

 private:
  int value_ = -1;
};

class SharedMemory {
 public:
  /// Zeroed memory whose size nobody can change.
  static StatusOr<SharedMemory> create(size_t size);
  /// Memory of another process; an invalid argument unless it is like that of create().
  static StatusOr<SharedMemory> open(const Descriptor& descriptor, size_t size);
  ~SharedMemory();
  SharedMemory(SharedMemory&& other) noexcept
      : bytes_(std::exchange(other.bytes_, {})), descriptor_(std::move(other.descriptor_)) {}
  SharedMemory& operator=(SharedMemory&&) = delete;

  std::byte* data() const { return bytes_.data(); }
  /// To hand over. Only of memory that create() made, until it was dropped.
  const Descriptor& descriptor() const { return descriptor_; }
  /// The memory stays.
  void dropDescriptor() { descriptor_ = Descriptor(); }

 private:
  SharedMemory(std::span<std::byte> bytes, Descriptor descriptor) : bytes_(bytes), descriptor_(std::move(descriptor)) {}

  std::span<std::byte> bytes_;
  Descriptor descriptor_;
};

}  // namespace agspeed::comm::shm

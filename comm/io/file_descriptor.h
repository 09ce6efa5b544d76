// SPDX-License-Identifier: Apache-2.0
// FileDescriptor: owns a file descriptor, and closes it in the destructor. Not thread-safe.
#pragma once

#include <utility>

namespace agspeed::comm::io {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int value) : value_(value) {}
  ~FileDescriptor();
  FileDescriptor(FileDescriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }

  int get() const { return value_; }
  bool isOpen() const { return value_ >= 0; }

 private:
  int value_ = -1;
};

}  // namespace agspeed::comm::io

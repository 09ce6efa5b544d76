// SPDX-License-Identifier: Apache-2.0
// ByteWriter and ByteReader: write and read the little-endian values of the fixed wire formats. A reader never reads
// past the end of its input. After the first value that does not fit, it returns zeros, and isComplete() is false. Not
// thread-safe.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

namespace agspeed::comm::wire {

static_assert(std::endian::native == std::endian::little, "the wire format is little-endian");

class ByteWriter {
 public:
  explicit ByteWriter(std::span<std::byte> out) : out_(out) {}

  /// Appends the bytes of `value`. Requires: there is room for them.
  template <typename T>
    requires(std::is_trivially_copyable_v<T> && !std::is_convertible_v<const T&, std::span<const std::byte>>)
  ByteWriter& put(const T& value) {
    return put(std::as_bytes(std::span(&value, 1)));
  }
  ByteWriter& put(std::span<const std::byte> bytes) {
    std::copy(bytes.begin(), bytes.end(), out_.begin() + static_cast<ptrdiff_t>(size_));
    size_ += bytes.size();
    return *this;
  }
  size_t size() const { return size_; }

 private:
  std::span<std::byte> out_;
  size_t size_ = 0;
};

class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> in) : in_(in) {}

  template <typename T>
  T take() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    take(std::as_writable_bytes(std::span(&value, 1)));
    return value;
  }
  void take(std::span<std::byte> out) {
    isComplete_ = isComplete_ && out.size() <= in_.size();
    if (!isComplete_) return;
    std::copy_n(in_.begin(), out.size(), out.begin());
    in_ = in_.subspan(out.size());
  }
  /// Returns whether the input was long enough for all values that were taken.
  bool isComplete() const { return isComplete_; }
  /// Returns whether isComplete() is true and no byte is left.
  bool isAtEnd() const { return isComplete_ && in_.empty(); }

 private:
  std::span<const std::byte> in_;
  bool isComplete_ = true;
};

}  // namespace agspeed::comm::wire

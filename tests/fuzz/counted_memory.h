// SPDX-License-Identifier: Apache-2.0
// Counts the memory that the process has allocated. When linked into a binary, it replaces operator new and delete.
// Thread-safe.
#pragma once

#include <cstdint>

namespace agspeed {

/// The most memory that an unauthenticated peer may make a rank allocate.
constexpr int64_t kMaxUnauthenticatedBytes = int64_t{16} << 20;

/// Counts bytes that are allocated beyond the bytes at its construction.
class CountedMemory {
 public:
  CountedMemory();
  /// The highest count so far.
  int64_t peakBytes() const;

 private:
  const int64_t before_;
};

}  // namespace agspeed

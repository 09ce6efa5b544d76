// SPDX-License-Identifier: Apache-2.0
// Counts what the process has allocated. Linked into a binary, it replaces operator new and delete. Thread-safe.
#pragma once

#include <cstdint>

namespace agspeed {

/// So much an unauthenticated peer may make a rank allocate, at most.
constexpr int64_t kMaxUnauthenticatedBytes = int64_t{16} << 20;

/// Bytes that are allocated beyond those at its construction.
class CountedMemory {
 public:
  CountedMemory();
  /// The most at a time so far.
  int64_t peakBytes() const;

 private:
  const int64_t before_;
};

}  // namespace agspeed

// SPDX-License-Identifier: Apache-2.0
// CRC32C (Castagnoli): detects corrupted bytes, but does not prove who wrote them. Long inputs are folded if the
// processor multiplies polynomials 512 or 256 bits at a time (VPCLMULQDQ). Otherwise the instruction of SSE4.2
// processes three parts side by side. Processors without it use a table. The functions have no state and are
// thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace agspeed::comm::security {

/// Returns the checksum of `bytes`, continued from `crc`, the checksum of the bytes before them: crc32c(b, crc32c(a))
/// is the checksum of a followed by b.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t crc = 0);

/// Returns the same checksum, computed with a table. It is for processors without the instruction, and the reference of
/// tests.
uint32_t crc32cByTable(std::span<const std::byte> bytes, uint32_t crc = 0);

/// A method of computing the checksum: "folding 512 bits", "folding 256 bits", "instruction", "table".
struct Crc32cMethod {
  std::string_view name;
  uint32_t (*compute)(std::span<const std::byte> bytes, uint32_t crc);
};
/// Returns all methods that this processor supports, the fastest first. crc32c() uses the first one.
std::span<const Crc32cMethod> crc32cMethods();

}  // namespace agspeed::comm::security

// SPDX-License-Identifier: Apache-2.0
// CRC32C (Castagnoli): detects corrupted bytes, but does not prove who wrote them. Long runs are folded if the
// processor multiplies polynomials 512 or 256 bits at a time (VPCLMULQDQ); otherwise it uses SSE4.2, three runs at a
// time. Thread-safe: no state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace agspeed::comm {

/// Checksum of `bytes`, continued from `crc`, the checksum of the bytes before them: crc32c(b, crc32c(a)) is the
/// checksum of a followed by b.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t crc = 0);

/// The same with a table only, for processors without the instruction and as the reference of tests.
uint32_t crc32cByTable(std::span<const std::byte> bytes, uint32_t crc = 0);

/// A way to compute it: "folding 512 bits", "folding 256 bits", "instruction", "table".
struct Crc32cMethod {
  std::string_view name;
  uint32_t (*compute)(std::span<const std::byte> bytes, uint32_t crc);
};
/// All methods that this processor supports, the fastest first; crc32c() uses that one.
std::span<const Crc32cMethod> crc32cMethods();

}  // namespace agspeed::comm

// SPDX-License-Identifier: Apache-2.0
// CRC32C (Castagnoli): finds corrupted bytes, proves nothing about who wrote them. Folds long runs where the processor
// multiplies polynomials 512 or 256 bits at a time (VPCLMULQDQ), else uses SSE4.2, three runs at a time. Thread-safe:
// no state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace agspeed::comm {

/// Checksum of `bytes` going on from `crc`, the checksum of what stands before them: crc32c(b, crc32c(a)) is that of
/// ab.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t crc = 0);

/// The same by tables alone: what processors without the instruction use, and what tests compare with.
uint32_t crc32cByTable(std::span<const std::byte> bytes, uint32_t crc = 0);

/// A way to compute it: "folding 512 bits", "folding 256 bits", "instruction", "table".
struct Crc32cMethod {
  std::string_view name;
  uint32_t (*compute)(std::span<const std::byte> bytes, uint32_t crc);
};
/// All that this processor has; crc32c() takes the first, the quickest.
std::span<const Crc32cMethod> crc32cMethods();

}  // namespace agspeed::comm

// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/files/content_hash.h"

#include "runtime/base/format.h"

namespace agspeed {

uint64_t hash64(std::string_view bytes, uint64_t state) {
  for (unsigned char byte : bytes) state = (state ^ byte) * 0x100000001b3u;
  return state;
}

std::string contentHash(std::string_view text) {
  // Two passes of 64 bits; the second is seeded by the first, so it sees the text in another state.
  const uint64_t first = hash64(text);
  const uint64_t second = hash64(text, first ^ text.size());
  return formatText("{:016x}{:016x}", first, second);
}

}  // namespace agspeed

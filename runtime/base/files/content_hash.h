// SPDX-License-Identifier: Apache-2.0
// Hashes that name texts by their content, such as kernels and the files of a cache. They are not a defence against
// forged texts. No state; safe from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace agspeed {

/// FNV-1a of 64 bits. A change of a single byte always changes the result. `state`: the hash of the text before
/// `bytes`.
uint64_t hash64(std::string_view bytes, uint64_t state = 0xcbf29ce484222325u);

/// 32 hexadecimal digits that identify a text.
std::string contentHash(std::string_view text);

}  // namespace agspeed

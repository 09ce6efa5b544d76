// SPDX-License-Identifier: Apache-2.0
// ByteView: bytes that are only read. The view does not own them.
#pragma once

#include <cstddef>
#include <span>

namespace agspeed {

using ByteView = std::span<const std::byte>;

}  // namespace agspeed

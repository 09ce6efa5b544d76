// SPDX-License-Identifier: Apache-2.0
// ByteView: bytes that somebody else owns and that are only read.
#pragma once

#include <cstddef>
#include <span>

namespace agspeed {

using ByteView = std::span<const std::byte>;

}  // namespace agspeed

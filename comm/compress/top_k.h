// SPDX-License-Identifier: Apache-2.0
// Selects the values with the largest magnitudes, exactly, in three passes over the values.
//
// The first pass counts values by exponent and the first mantissa bits. So it finds a narrow range of magnitudes that
// contains the smallest selected one. The second pass collects the values in that range, and the third writes indices.
//
// Pure and thread-safe. Allocates eight bytes for each value in that range.
#pragma once

#include <cstdint>
#include <span>

namespace agspeed::comm::compress {

/// Writes the indices of the indices.size() values with the largest magnitudes, in ascending order. Of equal
/// magnitudes, the lowest indices count as larger. Returns false if a value is NaN or infinite; the content of
/// `indices` is undefined then. Requires: 0 < indices.size() <= values.size() <= 2^31 - 1.
bool selectLargest(std::span<int32_t> indices, std::span<const float> values);

}  // namespace agspeed::comm::compress

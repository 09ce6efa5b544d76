// SPDX-License-Identifier: Apache-2.0
// Selects the k values with the largest magnitudes, exactly, in three passes over the values.
//
// The first pass makes a histogram of the exponents and the first 3 mantissa bits. It shows in which bin the k-th
// largest magnitude is. The second pass collects the values of this bin. The third pass writes the indices.
//
// Pure and thread-safe. Allocates eight bytes for each value of this bin.
#pragma once

#include <cstdint>
#include <span>

namespace agspeed::comm::compress {

/// Writes the indices of the indices.size() values with the largest magnitudes, in ascending order. Of equal
/// magnitudes, it selects the lowest indices. Returns false if a value is NaN or infinite; the content of `indices` is
/// undefined then. Requires: 0 < indices.size() <= values.size() <= 2^31 - 1.
bool selectLargest(std::span<int32_t> indices, std::span<const float> values);

}  // namespace agspeed::comm::compress

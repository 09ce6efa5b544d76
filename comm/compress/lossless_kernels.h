// SPDX-License-Identifier: Apache-2.0
// The loops of the lossless code, with the widest vectors of the processor. lossless.h is the interface.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/base/dtype.h"

namespace agspeed::comm::compress {

/// Encodes with vector instructions; see encodeLossless(). `room`: the capacity of `target` in bytes.
size_t encodeByVectors(uint8_t* target, size_t room, const uint8_t* source, size_t numElements, DType dtype);
/// See decodeLossless(). Returns false if the code is not valid.
bool decodeByVectors(uint8_t* target, size_t numElements, DType dtype, const uint8_t* code, size_t numBytes);

}  // namespace agspeed::comm::compress

// SPDX-License-Identifier: Apache-2.0
// MessageId: the name of a message between two ranks, as frames carry it. It is ordered only so that it can be a key.
#pragma once

#include <compare>
#include <cstdint>

namespace agspeed::comm {

struct MessageId {
  uint32_t communicator = 0;  ///< the group of ranks and the channel that the message belongs to
  uint32_t step = 0;          ///< the part of the operation: a schedule's step and segment, or a tag
  uint64_t sequence = 0;      ///< number of the operation within its communicator
  auto operator<=>(const MessageId&) const = default;
};

}  // namespace agspeed::comm

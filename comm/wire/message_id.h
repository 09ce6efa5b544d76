// SPDX-License-Identifier: Apache-2.0
// MessageId: the name of a message between two ranks, as frames carry it. It has an order only so that it can be a
// map's key.
#pragma once

#include <compare>
#include <cstdint>

namespace agspeed::comm::wire {

struct MessageId {
  uint32_t communicator = 0;  ///< the group of ranks or the channel that the message belongs to
  uint32_t step = 0;          ///< the part of the operation: a schedule's step and segment, or a tag
  uint64_t sequence = 0;      ///< number of the operation in its communicator, or of the message with this tag
  auto operator<=>(const MessageId&) const = default;
};

}  // namespace agspeed::comm::wire

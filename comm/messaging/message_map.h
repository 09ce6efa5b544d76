// SPDX-License-Identifier: Apache-2.0
// MessageMap: a map whose keys are names of messages between two ranks. Not ordered, not thread-safe. Its entries are
// allocated from its owner's MessagePool, which avoids a heap allocation per message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <unordered_map>

#include "comm/messaging/messenger.h"

namespace agspeed::comm::messaging {

struct MessageIdHash {
  size_t operator()(const wire::MessageId& id) const {
    const uint64_t hash = id.sequence * 0x9e3779b97f4a7c15u + (uint64_t{id.communicator} << 32 | id.step);
    return (hash ^ hash >> 29) * 0xbf58476d1ce4e5b9u >> 16;
  }
};

template <typename T>
using MessageMap = std::pmr::unordered_map<wire::MessageId, T, MessageIdHash>;

/// A memory pool for map entries and copies of small messages. It keeps freed blocks for later use. Blocks of more than
/// 4 KiB come from the heap.
class MessagePool final : public std::pmr::unsynchronized_pool_resource {
 public:
  MessagePool()
      : unsynchronized_pool_resource(
            std::pmr::pool_options{.max_blocks_per_chunk = 64, .largest_required_pool_block = 4096}) {}
};

}  // namespace agspeed::comm::messaging

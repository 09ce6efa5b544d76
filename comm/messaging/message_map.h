// SPDX-License-Identifier: Apache-2.0
// MessageMap: a map from names of messages between two ranks. Not ordered, not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "comm/messaging/messenger.h"

namespace agspeed::comm {

struct MessageIdHash {
  size_t operator()(const MessageId& id) const {
    const uint64_t hash = id.sequence * 0x9e3779b97f4a7c15u + (uint64_t{id.communicator} << 32 | id.step);
    return (hash ^ hash >> 29) * 0xbf58476d1ce4e5b9u >> 16;
  }
};

template <typename T>
using MessageMap = std::unordered_map<MessageId, T, MessageIdHash>;

}  // namespace agspeed::comm

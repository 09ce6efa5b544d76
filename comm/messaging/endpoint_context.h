// SPDX-License-Identifier: Apache-2.0
// EndpointContext: this rank and a peer, and what messages between them need of the messenger. Everything in it
// outlives those who hold it.
#pragma once

#include <string>
#include <unordered_set>

#include "comm/messaging/completion_queue.h"
#include "comm/transport/transport.h"
#include "runtime/base/format.h"

namespace agspeed::comm {

using Communicators = std::unordered_set<uint32_t>;

struct EndpointContext {
  int self;
  int peer;
  Transport& transport;
  CompletionQueue& completions;
  const Communicators& dropped;  ///< of them nothing is received or sent any more
};

inline std::string nameOf(const MessageId& id) {
  return formatText("(communicator {}, sequence {}, step {})", id.communicator, id.sequence, id.step);
}

/// Sender and receiver differ about a message's length.
inline Status wrongLength(int receiver, uint64_t expected, int sender, uint64_t sent, const MessageId& id) {
  return invalidArgument("rank {} expected {} bytes from rank {}, which sent {} {}", receiver, expected, sender, sent,
                         nameOf(id));
}

}  // namespace agspeed::comm

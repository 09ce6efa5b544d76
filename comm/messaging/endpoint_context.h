// SPDX-License-Identifier: Apache-2.0
// EndpointContext: this rank, a peer, and the parts of the messenger that messages between them need. The referenced
// objects outlive the context's users.
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
  const Communicators& dropped;  ///< communicators whose messages are discarded
};

inline std::string nameOf(const MessageId& id) {
  return formatText("(communicator {}, sequence {}, step {})", id.communicator, id.sequence, id.step);
}

/// The failure of a message whose length differs between sender and receiver.
inline Status wrongLength(int receiver, uint64_t expected, int sender, uint64_t sent, const MessageId& id) {
  return invalidArgument("rank {} expected {} bytes from rank {}, which sent {} {}", receiver, expected, sender, sent,
                         nameOf(id));
}

}  // namespace agspeed::comm

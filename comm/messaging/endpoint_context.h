// SPDX-License-Identifier: Apache-2.0
// EndpointContext: what all parts of an Endpoint have in common: this rank, the peer, and the parts of the messenger
// that they use. The referenced objects outlive the context's users.
#pragma once

#include <string>
#include <unordered_set>

#include "comm/messaging/completion_queue.h"
#include "comm/rendezvous/rank_names.h"
#include "comm/transport/transport.h"
#include "runtime/base/format.h"

namespace agspeed::comm::messaging {

using Communicators = std::unordered_set<uint32_t>;

struct EndpointContext {
  int self;
  int peer;
  const rendezvous::RankNames& names;
  transport::Transport& transport;
  CompletionQueue& completions;
  const Communicators& dropped;  ///< communicators whose messages are discarded

  std::string selfName() const { return names.of(self); }
  std::string peerName() const { return names.of(peer); }
};

/// Returns the name of a message as a text for errors.
inline std::string nameOf(const wire::MessageId& id) {
  return formatText("(communicator {}, sequence {}, step {})", id.communicator, id.sequence, id.step);
}

/// Returns the error for a message whose sender and receiver state different lengths.
inline Status wrongLength(const std::string& receiver, uint64_t expected, const std::string& sender, uint64_t sent,
                          const wire::MessageId& id) {
  return invalidArgument("{} expected {} bytes from {}, which sent {} {}", receiver, expected, sender, sent,
                         nameOf(id));
}

}  // namespace agspeed::comm::messaging

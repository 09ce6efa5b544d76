// SPDX-License-Identifier: Apache-2.0
// The bytes of what ranks say to the coordinator of their group and it to them.
//
// A message is a run of notes. Ids that follow each other take a byte each. Both ends are of one build and
// little-endian (the handshake of a connection compares versions); decoding never trusts a length, and what cannot be
// decoded is data loss.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "comm/named/request.h"
#include "runtime/base/status.h"

namespace agspeed::comm {

/// "As I said when these ids were given out": requests that have been made before.
struct CachedRequests {
  std::vector<uint32_t> ids;
};

/// The group is over: one of its ranks left, or failed.
struct Farewell {
  bool isFailure = false;
  std::string reason;
};

/// "I do not use these ids any more": they may be given to other names.
struct Forgotten {
  std::vector<uint32_t> ids;
};

using Note = std::variant<Request, CachedRequests, Response, Farewell, Forgotten>;
using Bytes = std::vector<std::byte>;

/// Appends the note to a message.
void encode(const Note& note, Bytes& message);
StatusOr<std::vector<Note>> decode(std::span<const std::byte> message);

}  // namespace agspeed::comm

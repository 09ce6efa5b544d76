// SPDX-License-Identifier: Apache-2.0
// Encodes the messages between ranks and coordinator as bytes.
//
// A message is a sequence of notes. A note is a request, a list of ids, a response, a farewell or a confirmation of
// evicted ids. Consecutive ids take one byte each. Both ends must use the same version of this code and be
// little-endian (the handshake of a connection compares versions). Decoding checks every length; it fails with data
// loss if a message is invalid.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "comm/named/request.h"
#include "runtime/base/status.h"

namespace agspeed::comm::named {

/// A note of a rank that repeats the requests for which the coordinator has assigned these ids.
struct CachedRequests {
  std::vector<uint32_t> ids;
};

/// A note that the group has ended, because one of its ranks has left or failed.
struct Farewell {
  bool isFailure = false;
  std::string reason;
};

/// A note of a rank that confirms that it no longer uses these evicted ids.
struct Forgotten {
  std::vector<uint32_t> ids;
};

using Note = std::variant<Request, CachedRequests, Response, Farewell, Forgotten>;
using Bytes = std::vector<std::byte>;

/// Appends the note to a message.
void encode(const Note& note, Bytes& message);
/// Decodes all notes of a message. Fails with data loss if the message is invalid.
StatusOr<std::vector<Note>> decode(std::span<const std::byte> message);

}  // namespace agspeed::comm::named

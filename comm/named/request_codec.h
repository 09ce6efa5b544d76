// SPDX-License-Identifier: Apache-2.0
// Encodes the messages between ranks and coordinator as bytes.
//
// A message is a sequence of notes. Consecutive ids take one byte each. Both ends run the same build and are
// little-endian (the handshake of a connection compares versions). Decoding trusts no length; it fails with data loss
// if a message is invalid.
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

/// Repeats the requests that this rank made when it got these ids.
struct CachedRequests {
  std::vector<uint32_t> ids;
};

/// The group has ended, because one of its ranks left or failed.
struct Farewell {
  bool isFailure = false;
  std::string reason;
};

/// This rank no longer uses these ids, so other names may get them.
struct Forgotten {
  std::vector<uint32_t> ids;
};

using Note = std::variant<Request, CachedRequests, Response, Farewell, Forgotten>;
using Bytes = std::vector<std::byte>;

/// Appends the note to a message.
void encode(const Note& note, Bytes& message);
StatusOr<std::vector<Note>> decode(std::span<const std::byte> message);

}  // namespace agspeed::comm

// SPDX-License-Identifier: Apache-2.0
// The messages by which a process connects with another process's ticket: a hello and a welcome. Each has its sender's
// record (comm/rendezvous/peer_record.h) for the association's rails, and proves that the sender has the ticket's
// secret and the job key.
//
//   hello    magic "AGCH", protocol, listener, association, channel, introduction, proof
//   welcome  reason of a refusal (empty: accepted), introduction, proof over hello and welcome
//
// Pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/channel/ticket.h"
#include "comm/security/keys.h"

namespace agspeed::comm {

/// The longest hello and the longest welcome. Both are received completely before they are parsed.
constexpr size_t kMaxHelloBytes = 6144;
/// The first bytes of a hello, by which it is recognized: magic and protocol.
constexpr size_t kHelloMagicBytes = 6;

/// The sender of a hello or a welcome.
struct Introduction {
  uint64_t domain = 0;
  uint32_t process = 0;
  std::string host;    ///< its name
  std::string record;  ///< encoded
};

struct Hello {
  uint64_t listener = 0;
  uint32_t association = 0;  ///< of the sender's domain
  uint32_t channel = 0;      ///< of the association
  Introduction from;
};

struct Welcome {
  std::string refusal;
  Introduction from;
};

/// Whether bytes that begin like this may be a hello.
bool mayBeHello(ByteView begin);
/// The listener that a hello names, unauthenticated; nullopt: the bytes are not a hello.
std::optional<uint64_t> listenerOf(ByteView hello);

std::vector<std::byte> encodeHello(const Hello& hello, const Ticket::Secret& secret, const JobKey& key);
/// nullopt: the hello is malformed, or its sender lacks the secret or the key.
std::optional<Hello> decodeHello(ByteView bytes, const Ticket::Secret& secret, const JobKey& key);

/// `hello`: the bytes of the hello that the welcome answers.
std::vector<std::byte> encodeWelcome(const Welcome& welcome, ByteView hello, const Ticket::Secret& secret,
                                     const JobKey& key);
std::optional<Welcome> decodeWelcome(ByteView bytes, ByteView hello, const Ticket::Secret& secret, const JobKey& key);

}  // namespace agspeed::comm

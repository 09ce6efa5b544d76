// SPDX-License-Identifier: Apache-2.0
// What two processes say to each other when one connects with the other's ticket: a hello and a welcome, each with the
// speaker's record (comm/rendezvous/peer_record.h) for the association's rails, and a proof that it has the ticket's
// secret and the job key.
//
//   hello    magic "AGCH", protocol, listener, association, channel, introduction, proof
//   welcome  a refusal's sentence (empty: accepted), introduction, proof over hello and welcome
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

/// Longer ones are none; both are read whole before they are understood.
constexpr size_t kMaxHelloBytes = 6144;
/// By which a hello is recognised: magic and protocol.
constexpr size_t kHelloMagicBytes = 6;

/// Who speaks.
struct Introduction {
  uint64_t domain = 0;
  uint32_t process = 0;
  std::string host;    ///< its name
  std::string record;  ///< encoded
};

struct Hello {
  uint64_t listener = 0;
  uint32_t association = 0;  ///< of the speaker's domain
  uint32_t channel = 0;      ///< of the association
  Introduction from;
};

struct Welcome {
  std::string refusal;
  Introduction from;
};

/// Whether something that begins so may be a hello.
bool mayBeHello(ByteView begin);
/// To which listener it is, unproven; nullopt: it is none.
std::optional<uint64_t> listenerOf(ByteView hello);

std::vector<std::byte> encodeHello(const Hello& hello, const Ticket::Secret& secret, const JobKey& key);
/// nullopt: malformed, or its speaker lacks the secret or the key.
std::optional<Hello> decodeHello(ByteView bytes, const Ticket::Secret& secret, const JobKey& key);

/// `hello`: the bytes that it answers.
std::vector<std::byte> encodeWelcome(const Welcome& welcome, ByteView hello, const Ticket::Secret& secret,
                                     const JobKey& key);
std::optional<Welcome> decodeWelcome(ByteView bytes, ByteView hello, const Ticket::Secret& secret, const JobKey& key);

}  // namespace agspeed::comm

// SPDX-License-Identifier: Apache-2.0
// Hello and Welcome: the two messages with which a process connects to the listener that made a ticket. Each message
// carries the record of its sender (comm/rendezvous/peer_record.h), from which the association makes its rails. It
// proves that the sender has the ticket's secret and the job key, if there is one.
//
//   hello    magic "AGCH", protocol, listener, association, channel, introduction, proof
//   welcome  reason of a refusal (empty: accepted), introduction, proof over hello and welcome
//
// All functions are pure and thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/channel/ticket.h"
#include "comm/security/keys.h"

namespace agspeed::comm::channel {

/// The maximum size of a hello and of a welcome. Both are received completely before they are parsed.
constexpr size_t kMaxHelloBytes = 6144;
/// How many bytes at the beginning of a hello identify it: magic and protocol.
constexpr size_t kHelloMagicBytes = 6;

/// Describes the sender of a hello or a welcome.
struct Introduction {
  uint64_t domain = 0;   ///< random number of the sender's Domain
  uint32_t process = 0;  ///< process id
  std::string host;      ///< the name of the host
  std::string record;    ///< the encoded PeerRecord
};

struct Hello {
  uint64_t listener = 0;     ///< number of the listener in the receiver's domain
  uint32_t association = 0;  ///< number of the association in the sender's domain
  uint32_t channel = 0;      ///< number of the channel in the association
  Introduction from;
};

struct Welcome {
  std::string refusal;  ///< why the listener refuses the hello; empty: it accepts
  Introduction from;
};

/// Returns whether a record that begins with these bytes can be a hello.
bool mayBeHello(ByteView begin);
/// Returns the listener that a hello names, without verifying the proof; nullopt: the bytes are not a hello.
std::optional<uint64_t> listenerOf(ByteView hello);

std::vector<std::byte> encodeHello(const Hello& hello, const Ticket::Secret& secret, const security::JobKey& key);
/// Verifies and parses a hello. Returns nullopt if it is malformed, or if its sender has not proven the secret and the
/// key.
std::optional<Hello> decodeHello(ByteView bytes, const Ticket::Secret& secret, const security::JobKey& key);

/// Encodes a welcome with its proof. `hello`: the bytes of the hello that the welcome answers.
std::vector<std::byte> encodeWelcome(const Welcome& welcome, ByteView hello, const Ticket::Secret& secret,
                                     const security::JobKey& key);
std::optional<Welcome> decodeWelcome(ByteView bytes, ByteView hello, const Ticket::Secret& secret,
                                     const security::JobKey& key);

}  // namespace agspeed::comm::channel

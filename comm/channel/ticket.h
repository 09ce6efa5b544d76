// SPDX-License-Identifier: Apache-2.0
// Ticket: 128 bytes that a listener hands out so that other processes can connect to it. NCCL's bootstrap carries
// handles of this size. A ticket may come from an attacker, so it is parsed as untrusted input, and verified with the
// job key if there is one. A process that connects must have the ticket, and also the job key if there is one. Without
// a job key, the ticket alone authenticates a peer.
//
//   bytes    field
//   0..7     magic "AGTK", version of tickets, version of the protocol
//   8..11    protection, number of addresses, a bit per address (1: IPv6)
//   12..15   process id of the listener
//   16..31   domain of the listener, and number of the listener in it
//   32..47   secret of the listener
//   48..101  addresses: 4 or 16 bytes and a port each
//   102..117 proof over all bytes before
//   120..127 a note of the connecting domain, initially 0: NCCL passes the same buffer to each call of connect
//
// All functions are pure and thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/rendezvous/peer_record.h"
#include "comm/security/job_key.h"
#include "comm/security/sealing.h"
#include "runtime/base/status.h"

namespace agspeed::comm::channel {

struct Ticket {
  static constexpr size_t kBytes = 128;
  using Bytes = std::span<std::byte, kBytes>;
  using Secret = std::array<std::byte, 16>;

  security::Protection protection = security::Protection::kIntegrity;
  uint32_t process = 0;   ///< process id of the listener
  uint64_t domain = 0;    ///< random number of the listener's Domain
  uint64_t listener = 0;  ///< number of the listener in its domain
  Secret secret{};
  std::vector<rendezvous::RailAddress> addresses;  ///< addresses of the listener; `prefixBits` is not encoded
  bool operator==(const Ticket&) const = default;

  /// Writes the ticket and its proof. 9 IPv4 addresses or 3 IPv6 addresses fit; further addresses are omitted.
  void encode(const security::JobKey& key, Bytes out) const;
  /// Verifies and parses a ticket. Invalid argument: the bytes are not a ticket of agspeed, or the ticket has another
  /// version, is damaged, or was made with another job key.
  static StatusOr<Ticket> decode(std::span<const std::byte, kBytes> bytes, const security::JobKey& key);

  // Read and write the note of the connecting domain, which the proof does not cover.
  static uint64_t note(std::span<const std::byte, kBytes> bytes);
  static void setNote(Bytes bytes, uint64_t note);
};

}  // namespace agspeed::comm::channel

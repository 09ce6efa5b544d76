// SPDX-License-Identifier: Apache-2.0
// Ticket: what a listener hands out so that others can connect to it, in the 128 bytes that NCCL's bootstrap carries.
// It may come from anybody: it is parsed as if an attacker had written it, and proven with the job key where there is
// one. Who has it can connect; without a job key a ticket is all that proves a peer.
//
//   bytes    field
//   0..7     magic "AGTK", version of tickets, version of the protocol
//   8..11    protection, number of addresses, a bit per address that is IPv6
//   12..15   process id of the listener
//   16..31   domain of the listener, and which of its listeners
//   32..47   secret of the listener
//   48..101  addresses: 4 or 16 bytes and a port each
//   102..117 proof over all before
//   120..127 the connector's own note (0 as handed out): NCCL keeps the buffer between its calls of connect
//
// Pure functions; thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/rendezvous/peer_record.h"
#include "comm/security/job_key.h"
#include "comm/security/sealing.h"
#include "runtime/base/status.h"

namespace agspeed::comm {

struct Ticket {
  static constexpr size_t kBytes = 128;
  using Bytes = std::span<std::byte, kBytes>;
  using Secret = std::array<std::byte, 16>;

  Protection protection = Protection::kIntegrity;
  uint32_t process = 0;
  uint64_t domain = 0;
  uint64_t listener = 0;
  Secret secret{};
  std::vector<RailAddress> addresses;  ///< where it listens; prefixes are not told
  bool operator==(const Ticket&) const = default;

  /// Addresses beyond those that fit are left out: 9 of IPv4, 3 of IPv6.
  void encode(const JobKey& key, Bytes out) const;
  /// Invalid argument: it is none of ours, of another version, damaged or made with another job key.
  static StatusOr<Ticket> decode(std::span<const std::byte, kBytes> bytes, const JobKey& key);

  static uint64_t note(std::span<const std::byte, kBytes> bytes);
  static void setNote(Bytes bytes, uint64_t note);
};

}  // namespace agspeed::comm

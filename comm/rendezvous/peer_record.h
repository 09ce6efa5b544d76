// SPDX-License-Identifier: Apache-2.0
// PeerRecord: the record that a rank publishes about itself in the store. An attacker may be able to write to the
// store, so records are parsed as untrusted. With a job key a record proves that its writer knows the key.
//
// The text has at most kMaxRecordBytes. It contains the magic "AGREC", the version, the fields of PeerRecord in their
// order with the rails last, and 32 bytes of HMAC-SHA256 under the job key. Without a job key, these 32 bytes are zero.
//
// All functions are pure and thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/security/job_key.h"
#include "comm/security/keys.h"
#include "comm/security/sealing.h"
#include "comm/topology/ip_address.h"
#include "runtime/base/status.h"

namespace agspeed::comm::rendezvous {

/// The address at which one rail of a rank listens.
struct RailAddress {
  topology::IpAddress address;
  uint8_t prefixBits = 0;  ///< length of the network's prefix
  uint16_t port = 0;
  bool operator==(const RailAddress&) const = default;
};

struct PeerRecord {
  static constexpr size_t kMaxRails = 64;

  security::Protection protection = security::Protection::kIntegrity;
  uint32_t epoch = 0;
  uint32_t rank = 0;
  uint32_t worldSize = 0;
  security::KeyPair::PublicKey publicKey{};
  std::vector<RailAddress> rails;
  bool operator==(const PeerRecord&) const = default;
};

/// Encodes a record, and proves the key if there is one. Requires: at most kMaxRails rails.
std::string encodePeerRecord(const PeerRecord& record, const security::JobKey& key);
/// Verifies and parses a record. Invalid argument: the record is malformed, of another version, or not made with `key`;
/// the message has the reason.
StatusOr<PeerRecord> decodePeerRecord(const std::string& text, const security::JobKey& key);

/// Pairs the rails of two ranks. Returns: for each rail of `mine`, the index of the rail of `theirs` that it connects
/// to; -1: none. Each rail of `theirs` is used at most once. A rail is paired with a rail of its own network. If no
/// such rail is left, it is paired with a rail of its address family. There is one exception. If both ranks have rails
/// in the networks of both rails, the two rails are not paired: there may be no route between these networks. The
/// search in `theirs` begins at the rail's own index and wraps around.
std::vector<int> pairRails(const std::vector<RailAddress>& mine, const std::vector<RailAddress>& theirs);

}  // namespace agspeed::comm::rendezvous

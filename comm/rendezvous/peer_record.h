// SPDX-License-Identifier: Apache-2.0
// PeerRecord: what a rank publishes in the store about itself. The store may be open to anybody, so a record is parsed
// as if an attacker had written it; with a job key it carries a proof that its writer knows the key.
//
//   text (at most kMaxRecordBytes): magic "AGREC", version, then the fields below in order, rails last, then 32 bytes
//   of HMAC-SHA256 under the job key, zeros without one.
//
// Pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/security/job_key.h"
#include "comm/security/keys.h"
#include "comm/security/sealing.h"
#include "comm/topology/ip_address.h"
#include "runtime/base/status.h"

namespace agspeed::comm {

/// Where a rank listens.
struct RailAddress {
  IpAddress address;
  uint8_t prefixBits = 0;
  uint16_t port = 0;
  bool operator==(const RailAddress&) const = default;
};

struct PeerRecord {
  static constexpr size_t kMaxRails = 64;

  Protection protection = Protection::kIntegrity;
  uint32_t epoch = 0;
  uint32_t rank = 0;
  uint32_t worldSize = 0;
  KeyPair::PublicKey publicKey{};
  std::vector<RailAddress> rails;
  bool operator==(const PeerRecord&) const = default;
};

/// Requires: at most kMaxRails rails.
std::string encodePeerRecord(const PeerRecord& record, const JobKey& key);
/// A record that is malformed, of another version, or not made with `key` is an invalid argument that says which.
StatusOr<PeerRecord> decodePeerRecord(const std::string& text, const JobKey& key);

/// For each of `mine` the rail of `theirs` that it talks to, by its index: one of the same network where there is one,
/// else of the same kind of address, that with the same index preferred. Rails of two networks that both ranks are in
/// are not paired: there may be no way from one to the other. No two share one; who finds none gets -1.
std::vector<int> pairRails(const std::vector<RailAddress>& mine, const std::vector<RailAddress>& theirs);

}  // namespace agspeed::comm

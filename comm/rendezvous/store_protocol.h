// SPDX-License-Identifier: Apache-2.0
// What a StreamStore and its StoreServer say to each other.
//
//   handshake   that of the rails (wire/handshake.h), with a secret that follows from the job key: both ends prove it
//   message     length of the body (4 bytes), body, 16 bytes of GMAC over both; each direction has a key of its own
//   request     operation (1), amount (8), length of the key (4), key, value
//   reply       code of the status (1), whether there is a value (1), number (8), value or the status's message
//
// Numbers are little-endian. Nothing of a connection is read as a message before its handshake is done, nor a body
// before its tag is right. Pure: no sockets, no clock. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/rendezvous/store.h"
#include "comm/security/job_key.h"
#include "comm/wire/handshake.h"

namespace agspeed::comm {

/// What a client claims to talk to: no rank has this number.
constexpr uint32_t kStoreRank = UINT32_MAX;
constexpr size_t kMaxStoreKeyBytes = 4096;

/// The secret of both ends. Requires: a key.
Digest storeSecret(const JobKey& key);

struct StoreRequest {
  enum class Operation : uint8_t { kSet = 1, kTryGet, kAdd, kSetOnce };
  Operation operation = Operation::kTryGet;
  std::string key = {}, value = {};
  int64_t amount = 0;
};

struct StoreReply {
  Status status;
  std::optional<std::string> value;
  int64_t number = 0;
};

using StoreBytes = std::vector<std::byte>;

StoreBytes encode(const StoreRequest& request);
StoreBytes encode(const StoreReply& reply);
/// Nullopt for bytes that are none.
std::optional<StoreRequest> decodeStoreRequest(std::span<const std::byte> body);
std::optional<StoreReply> decodeStoreReply(std::span<const std::byte> body);

/// Both directions of one connection, after its handshake.
class StoreChannel {
 public:
  enum class End : uint8_t { kClient, kServer };

  StoreChannel(const SealKey& key, End end);

  /// The message of this body.
  StoreBytes seal(std::span<const std::byte> body);
  /// Takes the first message from what has arrived. Returns: its body; nullopt while it is not all there; data loss
  /// where it is none of the other end's, after which the connection is of no use.
  StatusOr<std::optional<StoreBytes>> take(StoreBytes& arrived);

 private:
  Sealer sealer_;
  Opener opener_;
};

}  // namespace agspeed::comm

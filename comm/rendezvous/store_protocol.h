// SPDX-License-Identifier: Apache-2.0
// The protocol between a StreamStore and its StoreServer.
//
//   handshake   the rails' handshake (wire/handshake.h). Its secret is derived from the job key, and both ends prove
//               that they have it
//   message     length of the body (4 bytes), body, 16 bytes of GMAC over both; each direction has a key of its own
//   request     operation (1), amount (8), length of the key (4), key, value
//   reply       code of the status (1), whether there is a value (1), number (8), value or the status's message
//
// Numbers are little-endian. An end parses messages only after the handshake, and a body only after its tag has been
// verified. The code uses no sockets and no clock. Not thread-safe.
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

namespace agspeed::comm::rendezvous {

/// The rank that a client names as the target of its handshake. No real rank has this number.
constexpr uint32_t kStoreRank = UINT32_MAX;
constexpr size_t kMaxStoreKeyBytes = 4096;

/// Derives the secret of the handshake from the job key. Requires: `key` is not empty.
security::Digest storeSecret(const security::JobKey& key);

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
/// Parses the body of a request or a reply. Returns nullopt if it is not valid.
std::optional<StoreRequest> decodeStoreRequest(std::span<const std::byte> body);
std::optional<StoreReply> decodeStoreReply(std::span<const std::byte> body);

/// Seals and opens the messages of one connection after its handshake, in both directions.
class StoreChannel {
 public:
  enum class End : uint8_t { kClient, kServer };

  StoreChannel(const security::SealKey& key, End end);

  /// Returns the message with this body: its length, the body and its tag.
  StoreBytes seal(std::span<const std::byte> body);
  /// Removes the first message from `arrived`, and returns its body. Returns nullopt if the message is incomplete.
  /// Fails with data loss if the message is too long, or if its tag is wrong, so that the other end did not send it.
  /// After a data loss, the connection cannot be used.
  StatusOr<std::optional<StoreBytes>> take(StoreBytes& arrived);

 private:
  security::Sealer sealer_;
  security::Opener opener_;
};

}  // namespace agspeed::comm::rendezvous

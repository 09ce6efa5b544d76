// SPDX-License-Identifier: Apache-2.0
// The handshake of a connection. It proves with the secret of the pair which rank wants to send to which. It has three
// messages of fixed size, so that an unauthenticated peer costs a few bytes of memory and one comparison:
//
//   request  initiator -> responder   magic, version, protection, epoch, both ranks, nonce, proof
//   reply    responder -> initiator   nonce, proof over both messages
//   confirm  initiator -> responder   proof over both messages; frames follow at once
//
// frame_format.md lists all fields.
//
// A recorded request can be replayed, but the replayer cannot send a valid confirm, so it displaces nothing. Frame keys
// are derived from the secret, both nonces and the request: they are valid for this connection and this direction only.
// Pure: no sockets, no clock. Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "comm/security/keys.h"
#include "comm/security/sealing.h"

namespace agspeed::comm {

constexpr size_t kNonceBytes = 32;
constexpr size_t kRequestBytes = 20 + kNonceBytes + kDigestBytes;
constexpr size_t kReplyBytes = kNonceBytes + kDigestBytes;
constexpr size_t kConfirmBytes = kDigestBytes;

/// The fields that a request claims.
struct Claim {
  Protection protection = Protection::kIntegrity;
  uint32_t epoch = 0;
  uint32_t from = 0;
  uint32_t to = 0;
  bool operator==(const Claim&) const = default;
};

using RequestBytes = std::array<std::byte, kRequestBytes>;
using ReplyBytes = std::array<std::byte, kReplyBytes>;
using ConfirmBytes = std::array<std::byte, kConfirmBytes>;

/// The claim of a request, unproven; nullopt if the request has another magic or version.
std::optional<Claim> readClaim(std::span<const std::byte, kRequestBytes> request);

/// The end that sends frames.
class Initiator {
 public:
  /// `secret`: the secret of the pair, from the directory.
  Initiator(const Claim& claim, const Digest& secret);

  const RequestBytes& request() const { return request_; }
  /// The confirmation to send; nullopt if the reply does not come from the peer.
  std::optional<ConfirmBytes> confirm(std::span<const std::byte, kReplyBytes> reply) const;
  SealKey frameKey(std::span<const std::byte, kReplyBytes> reply) const;

 private:
  Digest secret_;
  RequestBytes request_;
};

/// The end that receives frames.
class Responder {
 public:
  /// nullopt unless the sender of the request knows the secret.
  static std::optional<Responder> answer(std::span<const std::byte, kRequestBytes> request, const Digest& secret);

  const ReplyBytes& reply() const { return reply_; }
  [[nodiscard]] bool isConfirmedBy(std::span<const std::byte, kConfirmBytes> confirm) const;
  SealKey frameKey() const;

 private:
  Digest secret_{};
  RequestBytes request_{};
  ReplyBytes reply_{};
};

}  // namespace agspeed::comm

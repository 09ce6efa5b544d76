// SPDX-License-Identifier: Apache-2.0
// The handshake of a connection. With the secret of a pair of ranks, it proves which rank wants to send to which. It
// has three messages of fixed size, so that an unauthenticated peer costs only a few bytes of memory and a few hashes:
//
//   request  initiator -> responder   magic, version, protection, epoch, both ranks, nonce, proof
//   reply    responder -> initiator   nonce, proof over both messages
//   confirm  initiator -> responder   proof over both messages; frames follow at once
//
// frame_format.md lists all fields.
//
// An attacker can replay a recorded request, but cannot send a valid confirm, so the replay replaces no connection.
// Frame keys are derived from the secret, both nonces and the request: they are valid for this connection and this
// direction only. The code uses no sockets and no clock. Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "comm/security/keys.h"
#include "comm/security/sealing.h"

namespace agspeed::comm::wire {

constexpr size_t kNonceBytes = 32;
constexpr size_t kRequestBytes = 20 + kNonceBytes + security::kDigestBytes;
constexpr size_t kReplyBytes = kNonceBytes + security::kDigestBytes;
constexpr size_t kConfirmBytes = security::kDigestBytes;

/// The properties of a connection that a request claims.
struct Claim {
  security::Protection protection = security::Protection::kIntegrity;
  uint32_t epoch = 0;
  uint32_t from = 0;
  uint32_t to = 0;
  bool operator==(const Claim&) const = default;
};

using RequestBytes = std::array<std::byte, kRequestBytes>;
using ReplyBytes = std::array<std::byte, kReplyBytes>;
using ConfirmBytes = std::array<std::byte, kConfirmBytes>;

/// Returns the claim of a request without verifying its proof; nullopt if the request has another magic or version.
std::optional<Claim> readClaim(std::span<const std::byte, kRequestBytes> request);

/// The end of a connection that begins the handshake, and then sends frames.
class Initiator {
 public:
  /// Makes the request. `secret`: the secret of the pair of ranks, from the directory.
  Initiator(const Claim& claim, const security::Digest& secret);

  const RequestBytes& request() const { return request_; }
  /// Verifies the reply, and returns the confirmation to send; nullopt if the peer has not proven the secret.
  std::optional<ConfirmBytes> confirm(std::span<const std::byte, kReplyBytes> reply) const;
  security::SealKey frameKey(std::span<const std::byte, kReplyBytes> reply) const;

 private:
  security::Digest secret_;
  RequestBytes request_;
};

/// The end of a connection that answers the handshake, and then receives frames.
class Responder {
 public:
  /// Verifies a request, and makes the reply. Returns nullopt unless the sender of the request has proven the secret.
  static std::optional<Responder> answer(std::span<const std::byte, kRequestBytes> request,
                                         const security::Digest& secret);

  const ReplyBytes& reply() const { return reply_; }
  [[nodiscard]] bool isConfirmedBy(std::span<const std::byte, kConfirmBytes> confirm) const;
  security::SealKey frameKey() const;

 private:
  security::Digest secret_{};
  RequestBytes request_{};
  ReplyBytes reply_{};
};

}  // namespace agspeed::comm::wire

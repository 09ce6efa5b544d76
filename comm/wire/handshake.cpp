// SPDX-License-Identifier: Apache-2.0
#include "comm/wire/handshake.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "comm/wire/byte_io.h"
#include "comm/wire/protocol_version.h"

namespace agspeed::comm::wire {
namespace {

constexpr uint32_t kMagic = 0x48534741;  // the bytes "AGSH"
constexpr size_t kClaimBytes = kRequestBytes - security::kDigestBytes;

/// Returns the proof of one of the three messages. Its key depends on the role of the message, so that no message can
/// be reflected as another.
security::Digest proofOf(const security::Digest& secret, std::string_view role, ByteView request, ByteView reply) {
  security::Digest key;
  security::deriveKey(secret, {}, security::bytesOf(role), key);
  std::vector<std::byte> text(request.begin(), request.end());
  text.insert(text.end(), reply.begin(), reply.end());
  return security::hmacSha256(key, text);
}

security::Digest requestProof(const security::Digest& secret, ByteView request) {
  return proofOf(secret, "agspeed request", request.first(kClaimBytes), {});
}
security::Digest replyProof(const security::Digest& secret, ByteView request, ByteView reply) {
  return proofOf(secret, "agspeed reply", request, reply.first(kNonceBytes));
}
security::Digest confirmProof(const security::Digest& secret, ByteView request, ByteView reply) {
  return proofOf(secret, "agspeed confirm", request, reply);
}

security::SealKey keyOfFrames(const security::Digest& secret, ByteView request, ByteView reply) {
  const security::Digest transcript = proofOf(secret, "agspeed frames", request, reply);
  security::SealKey key;
  std::copy_n(transcript.begin(), key.size(), key.begin());
  return key;
}

}  // namespace

std::optional<Claim> readClaim(std::span<const std::byte, kRequestBytes> request) {
  ByteReader reader(request);
  const bool isOurs = reader.take<uint32_t>() == kMagic && reader.take<uint16_t>() == kProtocolVersion;
  Claim claim;
  claim.protection = security::Protection(reader.take<uint16_t>());
  claim.epoch = reader.take<uint32_t>();
  claim.from = reader.take<uint32_t>();
  claim.to = reader.take<uint32_t>();
  return isOurs ? std::optional(claim) : std::nullopt;
}

Initiator::Initiator(const Claim& claim, const security::Digest& secret) : secret_(secret) {
  std::array<std::byte, kNonceBytes> nonce;
  security::fillRandom(nonce);
  ByteWriter writer(request_);
  writer.put(kMagic).put(kProtocolVersion).put(static_cast<uint16_t>(claim.protection)).put(claim.epoch);
  writer.put(claim.from).put(claim.to).put(nonce);
  writer.put(requestProof(secret_, request_));
}

std::optional<ConfirmBytes> Initiator::confirm(std::span<const std::byte, kReplyBytes> reply) const {
  if (!security::equalsInConstantTime(reply.last(security::kDigestBytes), replyProof(secret_, request_, reply)))
    return std::nullopt;
  return confirmProof(secret_, request_, reply);
}

security::SealKey Initiator::frameKey(std::span<const std::byte, kReplyBytes> reply) const {
  return keyOfFrames(secret_, request_, reply);
}

std::optional<Responder> Responder::answer(std::span<const std::byte, kRequestBytes> request,
                                           const security::Digest& secret) {
  if (!security::equalsInConstantTime(request.last(security::kDigestBytes), requestProof(secret, request)))
    return std::nullopt;
  Responder responder;
  responder.secret_ = secret;
  std::copy(request.begin(), request.end(), responder.request_.begin());
  security::fillRandom(std::span(responder.reply_).first(kNonceBytes));
  const security::Digest proof = replyProof(secret, responder.request_, responder.reply_);
  std::copy(proof.begin(), proof.end(), responder.reply_.begin() + kNonceBytes);
  return responder;
}

bool Responder::isConfirmedBy(std::span<const std::byte, kConfirmBytes> confirm) const {
  return security::equalsInConstantTime(confirm, confirmProof(secret_, request_, reply_));
}

security::SealKey Responder::frameKey() const { return keyOfFrames(secret_, request_, reply_); }

}  // namespace agspeed::comm::wire

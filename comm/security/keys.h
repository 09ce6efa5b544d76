// SPDX-License-Identifier: Apache-2.0
// Keys and what they are derived with: HMAC-SHA256, HKDF, X25519, random bytes, comparison in constant time. All of it
// is OpenSSL's; a failure inside OpenSSL is our bug or a broken installation and ends in AG_CHECK.
// Thread-safe but for KeyPair, which belongs to one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace agspeed::comm {

constexpr size_t kDigestBytes = 32;
using Digest = std::array<std::byte, kDigestBytes>;
using ByteView = std::span<const std::byte>;

/// The bytes of a text or of a plain object.
inline ByteView bytesOf(std::string_view text) { return std::as_bytes(std::span(text)); }

Digest hmacSha256(ByteView key, ByteView text);

/// HKDF (RFC 5869) with SHA-256: fills `out` (at most 255 digests) from `secret`, bound to `salt` and `info`.
void deriveKey(ByteView secret, ByteView salt, ByteView info, std::span<std::byte> out);

/// Whether both are equal, in a time that depends on their sizes only.
bool equalsInConstantTime(ByteView left, ByteView right);

void fillRandom(std::span<std::byte> out);

/// An X25519 key that lives as long as the process's group.
class KeyPair {
 public:
  using PublicKey = std::array<std::byte, 32>;

  static KeyPair generate();
  /// The key with these private bytes.
  static KeyPair fromPrivate(ByteView privateKey);

  const PublicKey& publicKey() const { return publicKey_; }
  /// The secret shared with the owner of `peer`; nullopt for a point of small order, which yields no secret.
  std::optional<Digest> agree(const PublicKey& peer) const;

 private:
  struct FreeKey {
    void operator()(void* key) const;
  };
  explicit KeyPair(void* key);

  std::unique_ptr<void, FreeKey> key_;
  PublicKey publicKey_{};
};

}  // namespace agspeed::comm

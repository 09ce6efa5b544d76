// SPDX-License-Identifier: Apache-2.0
// Keys and the functions that derive them: HMAC-SHA256, HKDF, X25519, random bytes, comparison in constant time.
// OpenSSL implements all of it; a failure inside OpenSSL is our bug or a broken installation and ends in AG_CHECK.
// Thread-safe, except that a KeyPair belongs to one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "runtime/base/byte_view.h"

namespace agspeed::comm::security {

constexpr size_t kDigestBytes = 32;
using Digest = std::array<std::byte, kDigestBytes>;

/// Returns the bytes of a text.
inline ByteView bytesOf(std::string_view text) { return std::as_bytes(std::span(text)); }

Digest hmacSha256(ByteView key, ByteView text);

/// HKDF (RFC 5869) with SHA-256: fills `out` (at most 255 digests) from `secret`, bound to `salt` and `info`.
void deriveKey(ByteView secret, ByteView salt, ByteView info, std::span<std::byte> out);

/// Returns whether both are equal. The time depends only on their sizes.
bool equalsInConstantTime(ByteView left, ByteView right);

void fillRandom(std::span<std::byte> out);
/// Returns the bytes as hexadecimal digits.
std::string digitsOf(ByteView bytes);
/// Returns this many random bytes as hexadecimal digits.
std::string randomDigits(size_t numBytes);

/// An X25519 key pair. Each Directory generates one, which lives as long as the directory and is never stored.
class KeyPair {
 public:
  using PublicKey = std::array<std::byte, 32>;

  static KeyPair generate();
  /// Makes the key pair of these private bytes.
  static KeyPair fromPrivate(ByteView privateKey);

  const PublicKey& publicKey() const { return publicKey_; }
  /// Computes the secret that is shared with the owner of `peer`; nullopt for a point of small order, which yields no
  /// secret.
  std::optional<Digest> agree(const PublicKey& peer) const;

 private:
  struct FreeKey {
    void operator()(void* key) const;
  };
  explicit KeyPair(void* key);

  std::unique_ptr<void, FreeKey> key_;
  PublicKey publicKey_{};
};

}  // namespace agspeed::comm::security

// SPDX-License-Identifier: Apache-2.0
// Sealer and Opener: the two ends of one direction of one connection. What the Sealer seals, the Opener opens in the
// same order; anything changed, dropped, repeated, reordered or taken from another connection does not open, and the
// connection is of no use after that.
//
//   protection     proof                          bytes per seal
//   integrity      CRC32C of counter and text     4
//   authenticated  AES-128-GMAC                   16
//   encrypted      AES-128-GCM                    16
//
// The nonce is a counter that neither end sends. Keys are replaced by their HKDF successors after SealLimits, at both
// ends alike, so a long job never repeats a nonce or reaches the bounds of GCM. Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "comm/security/gcm.h"
#include "comm/security/keys.h"

namespace agspeed::comm {

enum class Protection : uint8_t { kIntegrity = 1, kAuthenticated = 2, kEncrypted = 3 };

/// "integrity", "authenticated", "encrypted".
std::string_view toString(Protection protection);
std::optional<Protection> protectionFromString(std::string_view text);

constexpr size_t kMaxTagBytes = Gcm::kTagBytes;
constexpr size_t tagBytes(Protection protection) { return protection == Protection::kIntegrity ? 4 : kMaxTagBytes; }

/// How much one key seals.
struct SealLimits {
  uint64_t maxSeals = uint64_t{1} << 32;
  uint64_t maxBytes = uint64_t{1} << 36;
};

/// What both ends share: the key, the counter, and when to change them.
class SealState {
 public:
  SealState(Protection protection, const SealKey& key, SealLimits limits);

  Protection protection() const { return protection_; }
  /// Counts one seal over `size` bytes; returns its counter. The cipher has the key for it.
  uint64_t next(size_t size);
  /// Requires: not kIntegrity.
  Gcm& cipher() const { return *cipher_; }

 private:
  Protection protection_;
  SealKey key_;
  SealLimits limits_;
  uint64_t numSeals_ = 0;
  uint64_t numBytes_ = 0;
  std::unique_ptr<Gcm> cipher_;
};

class Sealer {
 public:
  Sealer(Protection protection, const SealKey& key, SealLimits limits = {}) : state_(protection, key, limits) {}

  Protection protection() const { return state_.protection(); }
  /// Writes the tag of a text that travels as it is. Requires: tag.size() == tagBytes(protection()).
  void sign(ByteView text, std::span<std::byte> tag);
  /// Encrypts `plain` into `cipher` of the same size, which may be the same bytes. Requires: kEncrypted.
  void encrypt(ByteView plain, std::span<std::byte> cipher, std::span<std::byte> tag);

 private:
  SealState state_;
};

class Opener {
 public:
  Opener(Protection protection, const SealKey& key, SealLimits limits = {}) : state_(protection, key, limits) {}

  Protection protection() const { return state_.protection(); }
  /// Whether `tag` is what the Sealer wrote for `text` at this point of the connection.
  [[nodiscard]] bool verify(ByteView text, ByteView tag);
  /// Decrypts in place; false when the bytes are not what the Sealer made. Requires: kEncrypted.
  [[nodiscard]] bool decrypt(std::span<std::byte> text, ByteView tag);

 private:
  SealState state_;
};

}  // namespace agspeed::comm

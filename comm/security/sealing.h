// SPDX-License-Identifier: Apache-2.0
// Sealer and Opener: protect the texts (headers and payloads) of one direction of one connection. The Sealer makes a
// tag for each text, and encrypts the text if the protection is kEncrypted. The Opener verifies the tags, in the order
// in which the Sealer made them. It rejects a text that was changed, repeated or reordered, or whose predecessor was
// dropped. With a key, it also rejects texts of other connections. After a rejection, the connection cannot be used.
//
//   protection     tag                            bytes per tag
//   integrity      CRC32C of counter and text     4
//   authenticated  AES-128-GMAC                   16
//   encrypted      AES-128-GCM                    16
//
// The nonce is a counter that neither end sends. When a key has reached its SealLimits, both ends replace it by its
// HKDF successor, so a long job neither repeats a nonce nor reaches the bounds of GCM. Not thread-safe.
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

namespace agspeed::comm::security {

enum class Protection : uint8_t { kIntegrity = 1, kAuthenticated = 2, kEncrypted = 3 };

/// Returns the name of a protection: "integrity", "authenticated", "encrypted".
std::string_view toString(Protection protection);
std::optional<Protection> protectionFromString(std::string_view text);

constexpr size_t kMaxTagBytes = Gcm::kTagBytes;
constexpr size_t tagBytes(Protection protection) { return protection == Protection::kIntegrity ? 4 : kMaxTagBytes; }

/// The maximum number of texts and bytes that one key seals.
struct SealLimits {
  uint64_t maxSeals = uint64_t{1} << 32;
  uint64_t maxBytes = uint64_t{1} << 36;
};

/// The state that both ends share: the key, the counter, and when to replace the key.
class SealState {
 public:
  SealState(Protection protection, const SealKey& key, SealLimits limits);

  Protection protection() const { return protection_; }
  /// Returns the counter for the next text, which has `size` bytes. Replaces the key first if it has reached its
  /// limits, so that cipher() has the right key for this text.
  uint64_t next(size_t size);
  /// Returns the cipher with the current key. Requires: the protection is not kIntegrity.
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
  /// Writes the tag of the next text, which is sent unencrypted. Requires: tag.size() == tagBytes(protection()).
  void sign(ByteView text, std::span<std::byte> tag);
  /// Encrypts the next text from `plain` into `cipher` of the same size, which may be the same bytes. Requires:
  /// kEncrypted.
  void encrypt(ByteView plain, std::span<std::byte> cipher, std::span<std::byte> tag);

 private:
  SealState state_;
};

class Opener {
 public:
  Opener(Protection protection, const SealKey& key, SealLimits limits = {}) : state_(protection, key, limits) {}

  Protection protection() const { return state_.protection(); }
  /// Verifies the next text of the connection. Returns: whether the Sealer wrote `tag` for `text` at this point. Call
  /// it exactly once per text.
  [[nodiscard]] bool verify(ByteView text, ByteView tag);
  /// Decrypts the next text of the connection in place. Returns: whether the Sealer made these bytes at this point; if
  /// not, discard the text. Requires: kEncrypted.
  [[nodiscard]] bool decrypt(std::span<std::byte> text, ByteView tag);

 private:
  SealState state_;
};

}  // namespace agspeed::comm::security

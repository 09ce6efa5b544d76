// SPDX-License-Identifier: Apache-2.0
// Gcm: AES-128-GCM and GMAC (NIST SP 800-38D) with counters as nonces; each call handles one whole text.
//
// Two libraries implement it with the same results: Intel's ipsec-mb, which is much faster on processors that have
// instructions for AES and carry-less multiplication, and OpenSSL everywhere. A failure inside OpenSSL is our bug or a
// broken installation and ends in AG_CHECK. An object belongs to one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "comm/security/keys.h"

namespace agspeed::comm::security {

using SealKey = std::array<std::byte, 16>;

class Gcm {
 public:
  static constexpr size_t kTagBytes = 16;
  using Tag = std::span<std::byte, kTagBytes>;
  using TagView = std::span<const std::byte, kTagBytes>;

  virtual ~Gcm() = default;

  virtual void setKey(const SealKey& key) = 0;
  /// Writes the GMAC tag of a text that is sent unencrypted. Use a counter only once under a key, for sign() and
  /// encrypt() together.
  virtual void sign(uint64_t counter, ByteView text, Tag tag) = 0;
  /// Encrypts `plain` into `cipher` of the same size, which may be the same bytes, and writes the GCM tag.
  virtual void encrypt(uint64_t counter, ByteView plain, std::span<std::byte> cipher, Tag tag) = 0;
  /// Returns whether sign() wrote `tag` for this text and counter. The time depends only on the size of the text.
  [[nodiscard]] virtual bool verify(uint64_t counter, ByteView text, TagView tag) = 0;
  /// Decrypts `text` in place. Returns: whether encrypt() made these bytes and `tag` with this counter; if not, discard
  /// the text. The time depends only on the size of the text.
  [[nodiscard]] virtual bool decrypt(uint64_t counter, std::span<std::byte> text, TagView tag) = 0;
};

std::unique_ptr<Gcm> makeOpensslGcm();
/// Makes the implementation with ipsec-mb; null if this processor lacks the instructions or this build lacks the
/// library.
std::unique_ptr<Gcm> makeIpsecMbGcm();
/// Makes the fastest implementation that works here.
std::unique_ptr<Gcm> makeGcm();

/// Returns the 12 bytes of a counter's nonce: the counter, little-endian, then zeros.
std::array<unsigned char, 12> gcmNonce(uint64_t counter);

}  // namespace agspeed::comm::security

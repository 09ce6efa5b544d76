// SPDX-License-Identifier: Apache-2.0
// Gcm: AES-128-GCM and GMAC (NIST SP 800-38D) under nonces that are counters, whole texts at a time.
//
// There are two libraries behind it, which give the same bytes: Intel's ipsec-mb, much the quicker one where processors
// have instructions for AES and carry-less multiplication, and OpenSSL everywhere. A failure inside OpenSSL is our bug
// or a broken installation and ends in AG_CHECK. An object belongs to one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "comm/security/keys.h"

namespace agspeed::comm {

using SealKey = std::array<std::byte, 16>;

class Gcm {
 public:
  static constexpr size_t kTagBytes = 16;
  using Tag = std::span<std::byte, kTagBytes>;
  using TagView = std::span<const std::byte, kTagBytes>;

  virtual ~Gcm() = default;

  virtual void setKey(const SealKey& key) = 0;
  /// Writes the tag of a text that travels as it is. No counter may sign or encrypt twice under a key.
  virtual void sign(uint64_t counter, ByteView text, Tag tag) = 0;
  /// Encrypts `plain` into `cipher` of the same size, which may be the same bytes.
  virtual void encrypt(uint64_t counter, ByteView plain, std::span<std::byte> cipher, Tag tag) = 0;
  /// Whether `tag` is what sign() wrote. Takes a time that depends on the size only.
  [[nodiscard]] virtual bool verify(uint64_t counter, ByteView text, TagView tag) = 0;
  /// Decrypts in place; false when the bytes are not what encrypt() made. Takes a time that depends on the size only.
  [[nodiscard]] virtual bool decrypt(uint64_t counter, std::span<std::byte> text, TagView tag) = 0;
};

std::unique_ptr<Gcm> makeOpensslGcm();
/// Null where this processor lacks the instructions, or this build the library.
std::unique_ptr<Gcm> makeIpsecMbGcm();
/// The quicker one that works here.
std::unique_ptr<Gcm> makeGcm();

/// The 12 bytes that a counter stands for: itself, little-endian, and zeros.
std::array<unsigned char, 12> gcmNonce(uint64_t counter);

}  // namespace agspeed::comm

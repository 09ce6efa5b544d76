// SPDX-License-Identifier: Apache-2.0
#include "comm/security/keys.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include "runtime/base/check.h"

namespace agspeed::comm::security {
namespace {

const unsigned char* raw(ByteView bytes) { return reinterpret_cast<const unsigned char*>(bytes.data()); }
unsigned char* rawOut(std::span<std::byte> bytes) { return reinterpret_cast<unsigned char*>(bytes.data()); }
EVP_PKEY* pkey(void* key) { return static_cast<EVP_PKEY*>(key); }

}  // namespace

Digest hmacSha256(ByteView key, ByteView text) {
  Digest digest;
  unsigned int size = 0;
  const unsigned char* made =
      HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), raw(text), text.size(), rawOut(digest), &size);
  AG_CHECK(made != nullptr && size == digest.size(), "OpenSSL refuses HMAC-SHA256");
  return digest;
}

void deriveKey(ByteView secret, ByteView salt, ByteView info, std::span<std::byte> out) {
  const Digest extracted = hmacSha256(salt, secret);
  std::vector<std::byte> text;
  for (std::byte block{1}; !out.empty(); block = std::byte(std::to_integer<int>(block) + 1)) {
    text.insert(text.end(), info.begin(), info.end());
    text.push_back(block);
    const Digest digest = hmacSha256(extracted, text);
    const size_t taken = std::min(out.size(), digest.size());
    std::copy_n(digest.begin(), taken, out.begin());
    out = out.subspan(taken);
    text.assign(digest.begin(), digest.end());
  }
}

bool equalsInConstantTime(ByteView left, ByteView right) {
  return left.size() == right.size() && CRYPTO_memcmp(left.data(), right.data(), left.size()) == 0;
}

void fillRandom(std::span<std::byte> out) {
  AG_CHECK(RAND_bytes(rawOut(out), static_cast<int>(out.size())) == 1, "OpenSSL has no random bytes");
}

std::string digitsOf(ByteView bytes) {
  std::string digits;
  for (const std::byte byte : bytes) {
    for (const unsigned half : {std::to_integer<unsigned>(byte) >> 4, std::to_integer<unsigned>(byte) & 15}) {
      digits += "0123456789abcdef"[half];
    }
  }
  return digits;
}

std::string randomDigits(size_t numBytes) {
  std::vector<std::byte> bytes(numBytes);
  fillRandom(bytes);
  return digitsOf(bytes);
}

void KeyPair::FreeKey::operator()(void* key) const { EVP_PKEY_free(pkey(key)); }

KeyPair::KeyPair(void* key) : key_(key) {
  size_t size = publicKey_.size();
  AG_CHECK(key != nullptr && EVP_PKEY_get_raw_public_key(pkey(key), rawOut(publicKey_), &size) == 1,
           "OpenSSL makes no X25519 key");
}

KeyPair KeyPair::generate() {
  std::array<std::byte, 32> privateKey;
  fillRandom(privateKey);
  KeyPair pair = fromPrivate(privateKey);
  OPENSSL_cleanse(privateKey.data(), privateKey.size());
  return pair;
}

KeyPair KeyPair::fromPrivate(ByteView privateKey) {
  return KeyPair(EVP_PKEY_new_raw_private_key(EVP_PKEY_X25519, nullptr, raw(privateKey), privateKey.size()));
}

std::optional<Digest> KeyPair::agree(const PublicKey& peer) const {
  const std::unique_ptr<void, FreeKey> other(
      EVP_PKEY_new_raw_public_key(EVP_PKEY_X25519, nullptr, raw(ByteView(peer)), peer.size()));
  const std::unique_ptr<EVP_PKEY_CTX, decltype(&EVP_PKEY_CTX_free)> context(EVP_PKEY_CTX_new(pkey(key_.get()), nullptr),
                                                                            &EVP_PKEY_CTX_free);
  AG_CHECK(other != nullptr && context != nullptr, "OpenSSL takes no X25519 key");
  Digest secret;
  size_t size = secret.size();
  if (EVP_PKEY_derive_init(context.get()) != 1 || EVP_PKEY_derive_set_peer(context.get(), pkey(other.get())) != 1 ||
      EVP_PKEY_derive(context.get(), rawOut(secret), &size) != 1) {
    return std::nullopt;
  }
  return secret;
}

}  // namespace agspeed::comm::security

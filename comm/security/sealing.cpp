// SPDX-License-Identifier: Apache-2.0
#include "comm/security/sealing.h"

#include <algorithm>
#include <cstring>

#include <openssl/evp.h>

#include "comm/security/crc32c.h"
#include "runtime/base/check.h"

namespace agspeed::comm {
namespace {

struct ProtectionName {
  Protection protection;
  std::string_view name;
};
constexpr ProtectionName kNames[] = {{Protection::kIntegrity, "integrity"},
                                     {Protection::kAuthenticated, "authenticated"},
                                     {Protection::kEncrypted, "encrypted"}};

constexpr size_t kNonceBytes = 12;

const unsigned char* raw(ByteView bytes) { return reinterpret_cast<const unsigned char*>(bytes.data()); }
unsigned char* rawOut(std::span<std::byte> bytes) { return reinterpret_cast<unsigned char*>(bytes.data()); }

uint32_t checksum(uint64_t counter, ByteView text) { return crc32c(text, static_cast<uint32_t>(counter) + 1); }

/// Starts the cipher with the nonce of `counter`. `forEncryption` as in EVP_CipherInit_ex.
void start(evp_cipher_ctx_st* context, uint64_t counter, int forEncryption) {
  unsigned char nonce[kNonceBytes] = {};
  std::memcpy(nonce, &counter, sizeof(counter));
  AG_CHECK(EVP_CipherInit_ex(context, nullptr, nullptr, nullptr, nonce, forEncryption) == 1, "AES-GCM does not start");
}

void update(evp_cipher_ctx_st* context, unsigned char* out, ByteView text) {
  int size = 0;
  AG_CHECK(EVP_CipherUpdate(context, out, &size, raw(text), static_cast<int>(text.size())) == 1, "AES-GCM fails");
}

void writeTag(evp_cipher_ctx_st* context, std::span<std::byte> tag) {
  unsigned char rest[kMaxTagBytes];
  int size = 0;
  AG_CHECK(EVP_CipherFinal_ex(context, rest, &size) == 1, "AES-GCM fails");
  AG_CHECK(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_GCM_GET_TAG, static_cast<int>(tag.size()), tag.data()) == 1,
           "AES-GCM gives no tag");
}

bool hasTag(evp_cipher_ctx_st* context, ByteView tag) {
  unsigned char expected[kMaxTagBytes];
  std::memcpy(expected, tag.data(), tag.size());
  AG_CHECK(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_GCM_SET_TAG, static_cast<int>(tag.size()), expected) == 1,
           "AES-GCM takes no tag");
  unsigned char rest[kMaxTagBytes];
  int size = 0;
  return EVP_CipherFinal_ex(context, rest, &size) == 1;
}

}  // namespace

std::string_view toString(Protection protection) {
  return std::find_if(std::begin(kNames), std::end(kNames), [&](auto& row) { return row.protection == protection; })
      ->name;
}

std::optional<Protection> protectionFromString(std::string_view text) {
  for (const ProtectionName& row : kNames) {
    if (row.name == text) return row.protection;
  }
  return std::nullopt;
}

void SealState::FreeContext::operator()(evp_cipher_ctx_st* context) const { EVP_CIPHER_CTX_free(context); }

SealState::SealState(Protection protection, const SealKey& key, SealLimits limits)
    : protection_(protection), key_(key), limits_(limits) {
  if (protection == Protection::kIntegrity) return;
  context_.reset(EVP_CIPHER_CTX_new());
  setKey();
}

void SealState::setKey() {
  AG_CHECK(EVP_CipherInit_ex(context_.get(), EVP_aes_128_gcm(), nullptr, raw(ByteView(key_)), nullptr, 1) == 1,
           "OpenSSL offers no AES-128-GCM");
}

uint64_t SealState::next(size_t size) {
  if (context_ != nullptr && (numSeals_ >= limits_.maxSeals || numBytes_ >= limits_.maxBytes)) {
    deriveKey(ByteView(SealKey(key_)), {}, bytesOf("agspeed next key"), key_);
    setKey();
    numSeals_ = 0;
    numBytes_ = 0;
  }
  numBytes_ += size;
  return numSeals_++;
}

void Sealer::sign(ByteView text, std::span<std::byte> tag) {
  const uint64_t counter = state_.next(text.size());
  if (protection() == Protection::kIntegrity) {
    const uint32_t crc = checksum(counter, text);
    std::memcpy(tag.data(), &crc, sizeof(crc));
    return;
  }
  start(state_.context(), counter, 1);
  update(state_.context(), nullptr, text);
  writeTag(state_.context(), tag);
}

void Sealer::encrypt(ByteView plain, std::span<std::byte> cipher, std::span<std::byte> tag) {
  start(state_.context(), state_.next(plain.size()), 1);
  update(state_.context(), rawOut(cipher), plain);
  writeTag(state_.context(), tag);
}

bool Opener::verify(ByteView text, ByteView tag) {
  const uint64_t counter = state_.next(text.size());
  if (protection() == Protection::kIntegrity) {
    const uint32_t crc = checksum(counter, text);
    return std::memcmp(tag.data(), &crc, sizeof(crc)) == 0;
  }
  start(state_.context(), counter, 0);
  update(state_.context(), nullptr, text);
  return hasTag(state_.context(), tag);
}

bool Opener::decrypt(std::span<std::byte> text, ByteView tag) {
  start(state_.context(), state_.next(text.size()), 0);
  update(state_.context(), rawOut(text), text);
  return hasTag(state_.context(), tag);
}

}  // namespace agspeed::comm

// SPDX-License-Identifier: Apache-2.0
#include "comm/security/sealing.h"

#include <algorithm>
#include <cstring>

#include "comm/security/crc32c.h"

namespace agspeed::comm::security {
namespace {

struct ProtectionName {
  Protection protection;
  std::string_view name;
};
constexpr ProtectionName kNames[] = {{Protection::kIntegrity, "integrity"},
                                     {Protection::kAuthenticated, "authenticated"},
                                     {Protection::kEncrypted, "encrypted"}};

uint32_t checksum(uint64_t counter, ByteView text) { return crc32c(text, static_cast<uint32_t>(counter) + 1); }

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

SealState::SealState(Protection protection, const SealKey& key, SealLimits limits)
    : protection_(protection), key_(key), limits_(limits) {
  if (protection == Protection::kIntegrity) return;
  cipher_ = makeGcm();
  cipher_->setKey(key_);
}

uint64_t SealState::next(size_t size) {
  if (cipher_ != nullptr && (numSeals_ >= limits_.maxSeals || numBytes_ >= limits_.maxBytes)) {
    deriveKey(ByteView(SealKey(key_)), {}, bytesOf("agspeed next key"), key_);
    cipher_->setKey(key_);
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
  state_.cipher().sign(counter, text, tag.first<Gcm::kTagBytes>());
}

void Sealer::encrypt(ByteView plain, std::span<std::byte> cipher, std::span<std::byte> tag) {
  const uint64_t counter = state_.next(plain.size());
  state_.cipher().encrypt(counter, plain, cipher, tag.first<Gcm::kTagBytes>());
}

bool Opener::verify(ByteView text, ByteView tag) {
  const uint64_t counter = state_.next(text.size());
  if (protection() == Protection::kIntegrity) {
    const uint32_t crc = checksum(counter, text);
    return std::memcmp(tag.data(), &crc, sizeof(crc)) == 0;
  }
  return state_.cipher().verify(counter, text, tag.first<Gcm::kTagBytes>());
}

bool Opener::decrypt(std::span<std::byte> text, ByteView tag) {
  const uint64_t counter = state_.next(text.size());
  return state_.cipher().decrypt(counter, text, tag.first<Gcm::kTagBytes>());
}

}  // namespace agspeed::comm::security

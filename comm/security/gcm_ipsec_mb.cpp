// SPDX-License-Identifier: Apache-2.0
#include <intel-ipsec-mb.h>

#include "comm/security/gcm.h"

namespace agspeed::comm::security {
namespace {

const uint8_t* raw(ByteView bytes) { return reinterpret_cast<const uint8_t*>(bytes.data()); }
uint8_t* rawOut(std::span<std::byte> bytes) { return reinterpret_cast<uint8_t*>(bytes.data()); }

using Initialize = void (*)(IMB_MGR*);

/// Returns the initializer that gives the library its functions for the instructions of this processor and kernel; null
/// if the instructions for AES are missing. The library's own choice does not check whether the kernel saves wide
/// registers.
Initialize chooseFunctions() {
  __builtin_cpu_init();
  const auto hasAvx512 = [] {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  };
  if (!__builtin_cpu_supports("aes") || !__builtin_cpu_supports("pclmul")) return nullptr;
  if (hasAvx512()) return [](IMB_MGR* manager) { init_mb_mgr_auto(manager, nullptr); };
  if (__builtin_cpu_supports("avx2")) return &init_mb_mgr_avx2;
  if (__builtin_cpu_supports("avx")) return &init_mb_mgr_avx;
  return __builtin_cpu_supports("sse4.2") ? &init_mb_mgr_sse : nullptr;
}

/// Returns the library's table of functions, which is never freed or changed; null: there is none.
const IMB_MGR* findFunctions() {
  const Initialize initialize = chooseFunctions();
  if (initialize == nullptr) return nullptr;
  std::unique_ptr<IMB_MGR, decltype(&free_mb_mgr)> manager(alloc_mb_mgr(0), &free_mb_mgr);
  if (manager == nullptr) return nullptr;
  initialize(manager.get());
  return imb_get_errno(manager.get()) == 0 ? manager.release() : nullptr;
}

const IMB_MGR* functions() {
  static const IMB_MGR* const found = findFunctions();
  return found;
}

class IpsecMbGcm final : public Gcm {
 public:
  explicit IpsecMbGcm(const IMB_MGR& library) : library_(library) {}

  void setKey(const SealKey& key) override { IMB_AES128_GCM_PRE(&library_, raw(key), &key_); }

  void sign(uint64_t counter, ByteView text, Tag tag) override {
    IMB_AES128_GMAC_INIT(&library_, &key_, &context_, gcmNonce(counter).data(), IMB_GCM_IV_DATA_LEN);
    // The library does not accept an empty text.
    if (!text.empty()) IMB_AES128_GMAC_UPDATE(&library_, &key_, &context_, raw(text), text.size());
    IMB_AES128_GMAC_FINALIZE(&library_, &key_, &context_, rawOut(tag), tag.size());
  }

  void encrypt(uint64_t counter, ByteView plain, std::span<std::byte> cipher, Tag tag) override {
    IMB_AES128_GCM_INIT(&library_, &key_, &context_, gcmNonce(counter).data(), nullptr, 0);
    if (!plain.empty()) {
      IMB_AES128_GCM_ENC_UPDATE(&library_, &key_, &context_, rawOut(cipher), raw(plain), plain.size());
    }
    IMB_AES128_GCM_ENC_FINALIZE(&library_, &key_, &context_, rawOut(tag), tag.size());
  }

  bool verify(uint64_t counter, ByteView text, TagView tag) override {
    std::array<std::byte, kTagBytes> expected;
    sign(counter, text, expected);
    return equalsInConstantTime(expected, tag);
  }

  bool decrypt(uint64_t counter, std::span<std::byte> text, TagView tag) override {
    IMB_AES128_GCM_INIT(&library_, &key_, &context_, gcmNonce(counter).data(), nullptr, 0);
    if (!text.empty()) {
      IMB_AES128_GCM_DEC_UPDATE(&library_, &key_, &context_, rawOut(text), raw(text), text.size());
    }
    std::array<std::byte, kTagBytes> expected;
    IMB_AES128_GCM_DEC_FINALIZE(&library_, &key_, &context_, rawOut(expected), expected.size());
    return equalsInConstantTime(expected, tag);
  }

 private:
  const IMB_MGR& library_;
  alignas(64) gcm_key_data key_;
  gcm_context_data context_;
};

}  // namespace

std::unique_ptr<Gcm> makeIpsecMbGcm() {
  return functions() == nullptr ? nullptr : std::make_unique<IpsecMbGcm>(*functions());
}

}  // namespace agspeed::comm::security

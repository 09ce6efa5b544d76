// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include <openssl/evp.h>

#include "comm/security/gcm.h"
#include "runtime/base/check.h"

namespace agspeed::comm::security {
namespace {

const unsigned char* raw(ByteView bytes) { return reinterpret_cast<const unsigned char*>(bytes.data()); }
unsigned char* rawOut(std::span<std::byte> bytes) { return reinterpret_cast<unsigned char*>(bytes.data()); }

class OpensslGcm final : public Gcm {
 public:
  OpensslGcm() : context_(EVP_CIPHER_CTX_new()) {}

  void setKey(const SealKey& key) override {
    AG_CHECK(EVP_CipherInit_ex(context_.get(), EVP_aes_128_gcm(), nullptr, raw(key), nullptr, 1) == 1,
             "OpenSSL offers no AES-128-GCM");
  }

  void sign(uint64_t counter, ByteView text, Tag tag) override {
    start(counter, 1);
    update(nullptr, text);
    writeTag(tag);
  }

  void encrypt(uint64_t counter, ByteView plain, std::span<std::byte> cipher, Tag tag) override {
    start(counter, 1);
    update(rawOut(cipher), plain);
    writeTag(tag);
  }

  bool verify(uint64_t counter, ByteView text, TagView tag) override {
    start(counter, 0);
    update(nullptr, text);
    return hasTag(tag);
  }

  bool decrypt(uint64_t counter, std::span<std::byte> text, TagView tag) override {
    start(counter, 0);
    update(rawOut(text), text);
    return hasTag(tag);
  }

 private:
  struct FreeContext {
    void operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }
  };

  /// Starts a text with the nonce of `counter`. For `forEncryption`, see EVP_CipherInit_ex.
  void start(uint64_t counter, int forEncryption) {
    AG_CHECK(EVP_CipherInit_ex(context_.get(), nullptr, nullptr, nullptr, gcmNonce(counter).data(), forEncryption) == 1,
             "AES-GCM does not start");
  }

  void update(unsigned char* out, ByteView text) {
    int size = 0;
    AG_CHECK(EVP_CipherUpdate(context_.get(), out, &size, raw(text), static_cast<int>(text.size())) == 1,
             "AES-GCM fails");
  }

  void writeTag(Tag tag) {
    unsigned char rest[kTagBytes];
    int size = 0;
    AG_CHECK(EVP_CipherFinal_ex(context_.get(), rest, &size) == 1, "AES-GCM fails");
    AG_CHECK(EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_GCM_GET_TAG, kTagBytes, tag.data()) == 1,
             "AES-GCM gives no tag");
  }

  bool hasTag(TagView tag) {
    unsigned char expected[kTagBytes];
    std::memcpy(expected, tag.data(), tag.size());
    AG_CHECK(EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_GCM_SET_TAG, kTagBytes, expected) == 1,
             "AES-GCM takes no tag");
    unsigned char rest[kTagBytes];
    int size = 0;
    return EVP_CipherFinal_ex(context_.get(), rest, &size) == 1;
  }

  std::unique_ptr<EVP_CIPHER_CTX, FreeContext> context_;
};

}  // namespace

std::unique_ptr<Gcm> makeOpensslGcm() { return std::make_unique<OpensslGcm>(); }

}  // namespace agspeed::comm::security

// SPDX-License-Identifier: Apache-2.0
#include "comm/security/gcm.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace agspeed::comm::security {
namespace {

using Bytes = std::vector<std::byte>;
using TagBytes = std::array<std::byte, Gcm::kTagBytes>;

Bytes fromHex(std::string_view hex) {
  Bytes bytes;
  for (size_t i = 0; i < hex.size(); i += 2)
    bytes.push_back(std::byte(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16)));
  return bytes;
}

struct Maker {
  const char* name;
  std::unique_ptr<Gcm> (*make)();
};

class GcmOf : public testing::TestWithParam<Maker> {
 protected:
  void SetUp() override {
    gcm_ = GetParam().make();
    if (gcm_ == nullptr) GTEST_SKIP() << GetParam().name << " is not in this build or not for this processor";
    gcm_->setKey({});
  }
  std::unique_ptr<Gcm> gcm_;
};

// Test cases 1 and 2 of "The Galois/Counter Mode of Operation" (McGrew, Viega): all zeros.
TEST_P(GcmOf, AgreesWithThePublishedVectors) {
  TagBytes tag;
  gcm_->encrypt(0, {}, {}, tag);
  EXPECT_EQ(Bytes(tag.begin(), tag.end()), fromHex("58e2fccefa7e3061367f1d57a4e7455a"));
  Bytes text(16);
  gcm_->encrypt(0, text, text, tag);
  EXPECT_EQ(text, fromHex("0388dace60b6a392f328c2b971b2fe78"));
  EXPECT_EQ(Bytes(tag.begin(), tag.end()), fromHex("ab6e47d42cec13bdf53a67b21257bddf"));
}

TEST_P(GcmOf, GivesTheBytesOfTheOther) {
  const std::unique_ptr<Gcm> other = makeOpensslGcm();
  const unsigned seed = std::random_device()();
  std::mt19937_64 random(seed);
  for (int round = 0; round < 300; ++round) {
    SealKey key;
    const size_t size = random() % (round % 3 == 0 ? 100000 : 400);
    const uint64_t counter = random();
    Bytes plain(size);
    for (std::byte& byte : key) byte = std::byte(random());
    for (std::byte& byte : plain) byte = std::byte(random());
    SCOPED_TRACE("seed " + std::to_string(seed) + ", round " + std::to_string(round) + ", " + std::to_string(size) +
                 " bytes");
    gcm_->setKey(key);
    other->setKey(key);

    TagBytes tag, expectedTag;
    gcm_->sign(counter, plain, tag);
    other->sign(counter, plain, expectedTag);
    ASSERT_EQ(tag, expectedTag);
    ASSERT_TRUE(gcm_->verify(counter, plain, tag));
    ASSERT_FALSE(gcm_->verify(counter + 1, plain, tag));

    Bytes cipher(size), expectedCipher(size);
    gcm_->encrypt(counter, plain, cipher, tag);
    other->encrypt(counter, plain, expectedCipher, expectedTag);
    ASSERT_EQ(cipher, expectedCipher);
    ASSERT_EQ(tag, expectedTag);
    Bytes text = cipher;
    ASSERT_TRUE(gcm_->decrypt(counter, text, tag));
    ASSERT_EQ(text, plain);
    text = cipher;
    (size == 0 ? tag[random() % tag.size()] : text[random() % size]) ^= std::byte{1};
    ASSERT_FALSE(gcm_->decrypt(counter, text, tag));
  }
}

INSTANTIATE_TEST_SUITE_P(Libraries, GcmOf,
                         testing::Values(Maker{"openssl", makeOpensslGcm}, Maker{"ipsec_mb", makeIpsecMbGcm}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace agspeed::comm::security

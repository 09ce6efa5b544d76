// SPDX-License-Identifier: Apache-2.0
#include "comm/security/sealing.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace agspeed::comm::security {
namespace {

constexpr SealKey kKey = {std::byte{1}, std::byte{2}, std::byte{3}};

std::vector<std::byte> textOf(size_t size, int seed = 0) {
  std::vector<std::byte> text(size);
  for (size_t i = 0; i < size; ++i) text[i] = std::byte(i * 7 + seed);
  return text;
}

class Sealing : public testing::TestWithParam<Protection> {
 protected:
  std::vector<std::byte> sign(ByteView text) {
    std::vector<std::byte> tag(tagBytes(GetParam()));
    sealer_.sign(text, tag);
    return tag;
  }
  Sealer sealer_{GetParam(), kKey};
  Opener opener_{GetParam(), kKey};
};

TEST_P(Sealing, OpensWhatWasSealedInOrder) {
  for (const size_t size : {0, 1, 64, 5000}) {
    const std::vector<std::byte> text = textOf(size);
    EXPECT_TRUE(opener_.verify(text, sign(text))) << "size " << size;
  }
}

TEST_P(Sealing, FindsEveryFlippedBit) {
  for (size_t bit = 0; bit < 64 * 8; bit += 5) {
    std::vector<std::byte> text = textOf(64);
    const std::vector<std::byte> tag = sign(text);
    text[bit / 8] ^= std::byte{1} << bit % 8;
    EXPECT_FALSE(opener_.verify(text, tag)) << "bit " << bit;
  }
}

TEST_P(Sealing, RefusesWhatIsRepeated) {
  const std::vector<std::byte> text = textOf(100);
  const std::vector<std::byte> first = sign(text);
  EXPECT_TRUE(opener_.verify(text, first));
  EXPECT_FALSE(opener_.verify(text, first));
}

TEST_P(Sealing, RefusesWhatFollowsALoss) {
  const std::vector<std::byte> text = textOf(100);
  sign(text);
  EXPECT_FALSE(opener_.verify(text, sign(text)));
}

TEST_P(Sealing, GoesOnAcrossKeyRotation) {
  const SealLimits limits = {3, 1000};
  Sealer sealer(GetParam(), kKey, limits);
  Opener opener(GetParam(), kKey, limits);
  for (int i = 0; i < 50; ++i) {
    const std::vector<std::byte> text = textOf(static_cast<size_t>(i) * 31, i);
    std::vector<std::byte> tag(tagBytes(GetParam()));
    sealer.sign(text, tag);
    ASSERT_TRUE(opener.verify(text, tag)) << "seal " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, Sealing,
                         testing::Values(Protection::kIntegrity, Protection::kAuthenticated, Protection::kEncrypted),
                         [](const auto& info) { return std::string(toString(info.param)); });

TEST(SealingSecrets, AnotherKeyDoesNotOpen) {
  SealKey other = kKey;
  other[15] = std::byte{1};
  const std::vector<std::byte> text = textOf(100);
  std::vector<std::byte> tag(kMaxTagBytes);
  Sealer(Protection::kAuthenticated, kKey).sign(text, tag);
  EXPECT_FALSE(Opener(Protection::kAuthenticated, other).verify(text, tag));
}

TEST(SealingSecrets, EncryptionHidesAndRestores) {
  Sealer sealer(Protection::kEncrypted, kKey);
  Opener opener(Protection::kEncrypted, kKey);
  const std::vector<std::byte> plain = textOf(3000);
  std::vector<std::byte> tag(kMaxTagBytes);
  std::vector<std::byte> cipher(plain.size());
  sealer.encrypt(plain, cipher, tag);
  EXPECT_NE(cipher, plain);
  EXPECT_TRUE(opener.decrypt(cipher, tag));
  EXPECT_EQ(cipher, plain);
  sealer.encrypt(plain, cipher, tag);
  cipher[17] ^= std::byte{4};
  EXPECT_FALSE(opener.decrypt(cipher, tag));
}

TEST(SealingSecrets, ModesHaveNames) {
  EXPECT_EQ(protectionFromString("encrypted"), Protection::kEncrypted);
  EXPECT_EQ(protectionFromString("none"), std::nullopt);
}

}  // namespace
}  // namespace agspeed::comm::security

// SPDX-License-Identifier: Apache-2.0
#include "comm/security/keys.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/security/job_key.h"

namespace agspeed::comm {
namespace {

std::vector<std::byte> fromHex(std::string_view hex) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(std::byte(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16)));
  }
  return bytes;
}

template <typename Bytes>
std::vector<std::byte> copyOf(const Bytes& bytes) {
  return {bytes.begin(), bytes.end()};
}

TEST(Keys, HmacMatchesPublishedValue) {  // RFC 4231, case 2
  EXPECT_EQ(copyOf(hmacSha256(bytesOf("Jefe"), bytesOf("what do ya want for nothing?"))),
            fromHex("5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"));
}

TEST(Keys, HkdfMatchesPublishedValue) {  // RFC 5869, case 1
  std::vector<std::byte> key(42);
  deriveKey(fromHex("0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b"), fromHex("000102030405060708090a0b0c"),
            fromHex("f0f1f2f3f4f5f6f7f8f9"), key);
  EXPECT_EQ(key, fromHex("3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"));
}

TEST(Keys, KeyAgreementMatchesPublishedValue) {  // RFC 7748, 6.1
  const KeyPair alice =
      KeyPair::fromPrivate(fromHex("77076d0a7318a57d3c16c17251b26645df4c2f92ebc0992ac177fba51db92c2a"));
  const KeyPair bob = KeyPair::fromPrivate(fromHex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"));
  EXPECT_EQ(copyOf(alice.publicKey()), fromHex("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"));
  ASSERT_TRUE(alice.agree(bob.publicKey()).has_value());
  EXPECT_EQ(copyOf(*alice.agree(bob.publicKey())),
            fromHex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"));
  EXPECT_EQ(alice.agree(bob.publicKey()), bob.agree(alice.publicKey()));
}

TEST(Keys, APointOfSmallOrderYieldsNoSecret) {
  EXPECT_FALSE(KeyPair::generate().agree(KeyPair::PublicKey{}).has_value());
}

TEST(Keys, ComparisonSeesEveryByte) {
  EXPECT_TRUE(equalsInConstantTime(bytesOf("agspeed"), bytesOf("agspeed")));
  EXPECT_FALSE(equalsInConstantTime(bytesOf("agspeed"), bytesOf("agspeee")));
  EXPECT_FALSE(equalsInConstantTime(bytesOf("agspeed"), bytesOf("agspee")));
}

class JobKeyFile : public testing::Test {
 protected:
  void write(std::string_view content, mode_t mode) {
    const int fd = open(path_.c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600);
    ASSERT_EQ(::write(fd, content.data(), content.size()), static_cast<ssize_t>(content.size()));
    fchmod(fd, mode);
    close(fd);
  }
  ~JobKeyFile() override { unlink(path_.c_str()); }

  std::string path_ = testing::TempDir() + "agspeed_job_key_" + std::to_string(getpid());
};

TEST_F(JobKeyFile, IsReadWithoutItsLineEnd) {
  write("0123456789abcdef0123\n", 0600);
  const StatusOr<JobKey> key = loadJobKey("", path_);
  ASSERT_TRUE(key.isOk()) << key.status().toString();
  EXPECT_EQ(*key, copyOf(bytesOf("0123456789abcdef0123")));
}

TEST_F(JobKeyFile, ThatOthersMayReadIsRefused) {
  write("0123456789abcdef0123\n", 0644);
  EXPECT_THAT(loadJobKey("", path_).status().message(), testing::HasSubstr("chmod 600"));
}

TEST_F(JobKeyFile, ThatIsMissingIsNamed) {
  EXPECT_THAT(loadJobKey("", path_).status().message(), testing::HasSubstr(path_));
}

TEST(JobKey, IsAbsentWhenNotGiven) { EXPECT_TRUE(loadJobKey("", "")->empty()); }

TEST(JobKey, ThatIsShortIsRefusedWithoutBeingShown) {
  const Status status = loadJobKey("tinysecret", "").status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), testing::Not(testing::HasSubstr("tinysecret")));
}

}  // namespace
}  // namespace agspeed::comm

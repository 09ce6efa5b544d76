// SPDX-License-Identifier: Apache-2.0
#include "comm/security/keys.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/security/job_key.h"
#include "runtime/base/format.h"

namespace agspeed::comm::security {
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

TEST(Keys, KeyAgreementMatchesPublishedValue) {  // RFC 7748, 5.2
  const KeyPair pair =
      KeyPair::fromPrivate(fromHex("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4"));
  KeyPair::PublicKey peer;
  const std::vector<std::byte> point = fromHex("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c");
  std::copy(point.begin(), point.end(), peer.begin());
  ASSERT_TRUE(pair.agree(peer).has_value());
  EXPECT_EQ(copyOf(*pair.agree(peer)), fromHex("c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552"));
}

TEST(Keys, BothEndsAgreeOnOneSecret) {
  const KeyPair first = KeyPair::generate();
  const KeyPair second = KeyPair::generate();
  EXPECT_EQ(first.agree(second.publicKey()), second.agree(first.publicKey()));
  EXPECT_NE(first.publicKey(), second.publicKey());
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
  ASSERT_TRUE(key.hasValue()) << key.status().toString();
  EXPECT_EQ(*key, copyOf(bytesOf("0123456789abcdef0123")));
}

TEST_F(JobKeyFile, ThatOthersMayReadIsRefused) {
  write("0123456789abcdef0123\n", 0644);
  EXPECT_THAT(loadJobKey("", path_).status().message(), testing::HasSubstr("chmod 600"));
}

TEST_F(JobKeyFile, OfAnotherUserIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  constexpr uid_t kOwner = 4711;
  write("0123456789abcdef0123\n", 0600);
  ASSERT_EQ(chown(path_.c_str(), kOwner, getgid()), 0);
  EXPECT_THAT(loadJobKey("", path_).status().message(), testing::HasSubstr("belongs to user 4711"));
}

TEST_F(JobKeyFile, ThatIsLongIsRefusedAndNotCut) {
  write(formatText("{}\n", std::string(4096, 'k')), 0600);
  EXPECT_EQ(loadJobKey("", path_).value().size(), 4096u);
  for (const size_t size : {4097, 4160, 100000}) {
    write(std::string(size, 'k'), 0600);
    EXPECT_THAT(loadJobKey("", path_).status().message(), testing::HasSubstr("more than 4096 bytes")) << size;
  }
  EXPECT_THAT(loadJobKey(std::string(4097, 'k'), "").status().message(), testing::HasSubstr("more than 4096 bytes"));
}

TEST_F(JobKeyFile, ThatIsInheritedIsTheLaunchersMemoryOrRefused) {
  const std::string key = "0123456789abcdef0123";
  const int memory = memfd_create("agspeed-job-key", MFD_CLOEXEC);
  ASSERT_EQ(fchmod(memory, 0600), 0);
  ASSERT_EQ(pwrite(memory, key.data(), key.size(), 0), static_cast<ssize_t>(key.size()));
  const std::string path = "/proc/self/fd/" + std::to_string(memory);
  EXPECT_EQ(loadJobKey("", path).value(), copyOf(bytesOf(key)));
  write("another secret of this user", 0600);
  const int other = open(path_.c_str(), O_RDONLY);
  ASSERT_EQ(dup2(other, memory), memory);
  EXPECT_THAT(loadJobKey("", path).status().message(), testing::HasSubstr("which is another file in this process"));
  close(other);
  close(memory);
  EXPECT_THAT(loadJobKey("", path).status().message(), testing::HasSubstr("which is not open in this process"));
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
}  // namespace agspeed::comm::security

// SPDX-License-Identifier: Apache-2.0
#include "comm/security/crc32c.h"

#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "comm/security/keys.h"

namespace agspeed::comm::security {
namespace {

TEST(Crc32c, MatchesPublishedValues) {  // RFC 3720, B.4
  EXPECT_EQ(crc32c(bytesOf("123456789")), 0xe3069283u);
  EXPECT_EQ(crc32c(std::vector<std::byte>(32, std::byte{0})), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::vector<std::byte>(32, std::byte{0xff})), 0x62a8ab43u);
  EXPECT_EQ(crc32c({}), 0u);
}

TEST(Crc32c, AllWaysOfComputingItAgree) {
  std::mt19937 random(7);
  std::vector<std::byte> bytes(20000);
  for (std::byte& byte : bytes) byte = std::byte(random());
  for (int trial = 0; trial < 200; ++trial) {
    const size_t begin = random() % 64;
    const std::span<const std::byte> part(bytes.data() + begin, random() % (bytes.size() - begin));
    const size_t cut = part.empty() ? 0 : random() % part.size();
    const uint32_t expected = crc32cByTable(part);
    ASSERT_EQ(crc32c(part), expected) << "begin " << begin << ", size " << part.size();
    ASSERT_EQ(crc32c(part.subspan(cut), crc32c(part.first(cut))), expected) << "cut " << cut;
  }
}

}  // namespace
}  // namespace agspeed::comm::security

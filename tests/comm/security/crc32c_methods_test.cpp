// SPDX-License-Identifier: Apache-2.0
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "comm/security/crc32c.h"
#include "runtime/base/byte_view.h"

namespace agspeed::comm::security {
namespace {

constexpr uint32_t kSeed = 11;

std::vector<std::byte> randomBytes(size_t size) {
  std::mt19937 random(kSeed);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = std::byte(random());
  return bytes;
}

TEST(Crc32cMethods, TheLastOneIsThatOfAnyProcessor) {
  ASSERT_FALSE(crc32cMethods().empty());
  EXPECT_EQ(crc32cMethods().back().name, "table");
}

TEST(Crc32cMethods, AllAgreeAtAllLengthsAndAlignments) {
  const std::vector<std::byte> bytes = randomBytes(1400);
  for (const Crc32cMethod& method : crc32cMethods()) {
    for (size_t begin = 0; begin < 64; ++begin) {
      // Long enough to fold several times at full width, with each remainder after it.
      uint32_t expected = 0x1234567;
      for (size_t size = 0; begin + size < bytes.size(); ++size) {
        const ByteView part(bytes.data() + begin, size);
        ASSERT_EQ(method.compute(part, 0x1234567), expected)
            << method.name << ", begin " << begin << ", size " << size << ", seed " << kSeed;
        expected = crc32cByTable(ByteView(bytes.data() + begin + size, 1), expected);
      }
    }
  }
}

TEST(Crc32cMethods, AllAgreeOnPayloads) {
  const std::vector<std::byte> bytes = randomBytes(256 * 1024 + 17);
  const uint32_t expected = crc32cByTable(bytes);
  for (const Crc32cMethod& method : crc32cMethods()) {
    EXPECT_EQ(method.compute(bytes, 0), expected) << method.name << ", seed " << kSeed;
    const ByteView first = ByteView(bytes).first(100'003), second = ByteView(bytes).subspan(100'003);
    EXPECT_EQ(method.compute(second, method.compute(first, 0)), expected) << method.name << ", seed " << kSeed;
  }
}

}  // namespace
}  // namespace agspeed::comm::security

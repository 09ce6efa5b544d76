// SPDX-License-Identifier: Apache-2.0
#include "comm/wire/byte_io.h"

#include <array>

#include <gtest/gtest.h>

namespace agspeed::comm::wire {
namespace {

TEST(ByteIo, ValuesComeBackInTheirOrder) {
  std::array<std::byte, 16> buffer{};
  const std::array text = {std::byte{'o'}, std::byte{'k'}};
  ByteWriter writer(buffer);
  writer.put(uint32_t{0x01020304}).put(uint8_t{5}).put(std::span<const std::byte>(text));
  EXPECT_EQ(writer.size(), 7u);
  EXPECT_EQ(buffer[0], std::byte{4}) << "little-endian";
  const std::span<const std::byte> written(buffer.data(), writer.size());
  ByteReader reader(written);
  EXPECT_EQ(reader.take<uint32_t>(), 0x01020304u);
  EXPECT_EQ(reader.take<uint8_t>(), 5);
  EXPECT_FALSE(reader.isAtEnd());
  std::array<std::byte, 2> found{};
  reader.take(found);
  EXPECT_EQ(found, text);
  EXPECT_TRUE(reader.isAtEnd());
}

TEST(ByteIo, AReaderThatHadToRunPastItsEndGivesZerosAndRemembers) {
  const std::array bytes = {std::byte{1}, std::byte{2}, std::byte{3}};
  ByteReader reader(bytes);
  EXPECT_EQ(reader.take<uint32_t>(), 0u);
  EXPECT_FALSE(reader.isComplete());
  EXPECT_EQ(reader.take<uint8_t>(), 0) << "though a byte is left";
  EXPECT_FALSE(reader.isAtEnd());
}

}  // namespace
}  // namespace agspeed::comm::wire

// SPDX-License-Identifier: Apache-2.0
#include "comm/wire/frame_format.h"

#include <random>

#include <gtest/gtest.h>

namespace agspeed::comm::wire {
namespace {

using HeaderBytes = std::array<std::byte, kHeaderBytes>;

FrameHeader header() {
  FrameHeader header;
  header.kind = FrameKind::kData;
  header.length = 1000;
  header.epoch = 2;
  header.id = {3, 4, 5};
  header.total = uint64_t{1} << 40;
  header.offset = 1 << 20;
  header.number = 6;
  header.acknowledged = 7;
  header.consumed = 8;
  return header;
}

HeaderBytes encoded(const FrameHeader& header) {
  HeaderBytes bytes;
  encodeHeader(header, bytes);
  return bytes;
}

TEST(FrameFormat, HeadersComeBackAsTheyWere) {
  const HeaderBytes bytes = encoded(header());
  const std::optional<FrameHeader> decoded = decodeHeader(bytes);
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(encoded(*decoded), bytes);
  EXPECT_EQ(decoded->id, header().id);
  EXPECT_EQ(decoded->offset, header().offset);
}

TEST(FrameFormat, ImpossibleHeadersAreRefused) {
  const auto refuses = [](auto change) {
    FrameHeader changed = header();
    change(changed);
    return !decodeHeader(encoded(changed)).has_value();
  };
  EXPECT_TRUE(refuses([](FrameHeader& h) { h.kind = FrameKind(0); }));
  EXPECT_TRUE(refuses([](FrameHeader& h) { h.kind = FrameKind(12); }));
  EXPECT_TRUE(refuses([](FrameHeader& h) { h.kind = FrameKind::kCts; }));  // this kind has no payload
  EXPECT_TRUE(refuses([](FrameHeader& h) { h.length = UINT32_MAX; }));
  EXPECT_TRUE(refuses([](FrameHeader& h) { h.offset = UINT64_MAX - 10; }));
  EXPECT_TRUE(refuses([](FrameHeader& h) { h.offset = h.total - 999; }));
  EXPECT_TRUE(refuses([](FrameHeader& h) { h.length = 0; }));
  EXPECT_FALSE(refuses([](FrameHeader& h) { h.offset = h.total - 1000; }));
}

TEST(FrameFormat, WhateverIsDecodedStaysWithinItsMessage) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int trial = 0; trial < 100000; ++trial) {
    HeaderBytes bytes = encoded(header());
    for (size_t flips = 1 + random() % 4; flips > 0; --flips) bytes[random() % bytes.size()] = std::byte(random());
    const std::optional<FrameHeader> decoded = decodeHeader(bytes);
    if (!decoded) continue;
    ASSERT_LE(decoded->length, kMaxPayloadBytes);
    if (decoded->length > 0) {
      ASSERT_LE(decoded->offset, decoded->total - decoded->length);
    }
  }
}

}  // namespace
}  // namespace agspeed::comm::wire

// SPDX-License-Identifier: Apache-2.0
#include "comm/rendezvous/peer_record.h"

#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/fuzz/random_bytes.h"

namespace agspeed::comm::rendezvous {
namespace {

using testing::HasSubstr;

const security::JobKey kKey(20, std::byte{7});

RailAddress rail(const char* address, uint8_t prefixBits = 24) {
  return {*topology::parseIpAddress(address), prefixBits, 4711};
}

PeerRecord record() {
  PeerRecord record;
  record.protection = security::Protection::kEncrypted;
  record.epoch = 3;
  record.rank = 5;
  record.worldSize = 8;
  record.publicKey[31] = std::byte{9};
  record.rails = {rail("10.0.0.5"), rail("fd00::5", 64)};
  return record;
}

TEST(PeerRecord, ComesBackAsItWas) {
  for (const security::JobKey& key : {security::JobKey(), kKey}) {
    const StatusOr<PeerRecord> decoded = decodePeerRecord(encodePeerRecord(record(), key), key);
    ASSERT_TRUE(decoded.hasValue()) << decoded.status().toString();
    EXPECT_EQ(*decoded, record());
  }
}

TEST(PeerRecord, OfAnotherKeyIsRefused) {
  EXPECT_THAT(decodePeerRecord(encodePeerRecord(record(), security::JobKey(20, std::byte{8})), kKey).status().message(),
              HasSubstr("another job key"));
  EXPECT_THAT(decodePeerRecord(encodePeerRecord(record(), {}), kKey).status().message(), HasSubstr("without one"));
  EXPECT_THAT(decodePeerRecord(encodePeerRecord(record(), kKey), {}).status().message(),
              HasSubstr("this rank has none"));
}

TEST(PeerRecord, OfAnotherVersionIsNamed) {
  std::string text = encodePeerRecord(record(), kKey);
  text[5] = 9;
  EXPECT_THAT(decodePeerRecord(text, kKey).status().message(), HasSubstr("version 9"));
}

TEST(PeerRecord, AnyFlippedBitIsFoundWithAKey) {
  const std::string text = encodePeerRecord(record(), kKey);
  for (size_t bit = 0; bit < text.size() * 8; bit += 3) {
    std::string changed = text;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ 1 << bit % 8);
    EXPECT_FALSE(decodePeerRecord(changed, kKey).hasValue()) << "bit " << bit;
  }
}

TEST(PeerRecord, HostileTextsAreParsedSafely) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const std::string text = encodePeerRecord(record(), {});
  for (int trial = 0; trial < fuzzCount(20000); ++trial) {
    std::string changed = text.substr(0, random() % (text.size() + 1));
    for (size_t flips = random() % 8; flips > 0 && !changed.empty(); --flips) {
      changed[random() % changed.size()] = static_cast<char>(random());
    }
    if (changed.size() > 32) changed.replace(changed.size() - 32, 32, 32, '\0');
    const StatusOr<PeerRecord> decoded = decodePeerRecord(changed, {});
    if (decoded.hasValue()) {
      EXPECT_LE(decoded->rails.size(), PeerRecord::kMaxRails);
    }
  }
  EXPECT_FALSE(decodePeerRecord(std::string(1 << 20, 'A'), {}).hasValue());
}

using Pairs = std::vector<int>;

TEST(PairRails, PrefersTheSameNetwork) {
  EXPECT_EQ(pairRails({rail("10.0.0.1"), rail("10.0.1.1")}, {rail("10.0.1.2"), rail("10.0.0.2")}), (Pairs{1, 0}));
  EXPECT_EQ(pairRails({rail("10.9.0.1"), rail("10.0.1.1")}, {rail("10.0.1.2"), rail("10.0.0.2")}), (Pairs{1, 0}));
}

TEST(PairRails, FallsBackToTheSameIndex) {
  EXPECT_EQ(pairRails({rail("10.0.0.1"), rail("10.0.1.1")}, {rail("10.9.0.2"), rail("10.9.1.2")}), (Pairs{0, 1}));
}

TEST(PairRails, LeavesOutWhatAPeerWithFewerRailsHasNotGot) {
  EXPECT_EQ(pairRails({rail("10.0.0.1"), rail("10.0.1.1")}, {rail("10.0.0.2")}), (Pairs{0, -1}));
  EXPECT_EQ(pairRails({rail("10.0.0.1"), rail("10.0.1.1")}, {rail("10.0.1.2")}), (Pairs{-1, 0}));
}

TEST(PairRails, LeavesOutFlowsThatAPeerHasNotGotInTheirNetwork) {
  EXPECT_EQ(pairRails({rail("10.0.0.1"), rail("10.0.1.1"), rail("10.0.0.1")},
                      {rail("10.0.0.2"), rail("10.0.1.2"), rail("10.0.1.2")}),
            (Pairs{0, 1, -1}));
  EXPECT_EQ(pairRails({rail("10.0.0.1"), rail("10.0.0.1")}, {rail("10.0.0.2"), rail("10.9.0.2")}), (Pairs{0, 1}))
      << "a network of the peer alone may be reached from anywhere";
}

TEST(PairRails, FindsNothingOfAnotherKind) { EXPECT_EQ(pairRails({rail("10.0.0.1")}, {rail("fd00::2")}), (Pairs{-1})); }

}  // namespace
}  // namespace agspeed::comm::rendezvous

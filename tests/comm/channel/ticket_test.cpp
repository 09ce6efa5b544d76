// SPDX-License-Identifier: Apache-2.0
#include "comm/channel/ticket.h"

#include <gtest/gtest.h>

#include <random>

namespace agspeed::comm::channel {
namespace {

using Bytes = std::array<std::byte, Ticket::kBytes>;

const security::JobKey kKey(20, std::byte{7}), kOtherKey(20, std::byte{8});

rendezvous::RailAddress addressOf(const char* text, uint16_t port) {
  return {topology::parseIpAddress(text).value(), 0, port};
}

Ticket sample(std::vector<rendezvous::RailAddress> addresses) {
  Ticket ticket;
  ticket.protection = security::Protection::kEncrypted;
  ticket.process = 4242;
  ticket.domain = 0x0123456789abcdef;
  ticket.listener = 77;
  ticket.secret.fill(std::byte{9});
  ticket.addresses = std::move(addresses);
  return ticket;
}

Bytes encoded(const Ticket& ticket, const security::JobKey& key) {
  Bytes bytes;
  ticket.encode(key, bytes);
  return bytes;
}

TEST(Ticket, ReadsBackWithAndWithoutAJobKey) {
  const Ticket ticket = sample({addressOf("10.0.0.5", 1), addressOf("fe80::1", 65535), addressOf("10.1.0.5", 3)});
  for (const security::JobKey& key : {security::JobKey(), kKey}) {
    const StatusOr<Ticket> read = Ticket::decode(encoded(ticket, key), key);
    ASSERT_TRUE(read.hasValue()) << read.status().toString();
    EXPECT_EQ(read.value(), ticket);
  }
}

TEST(Ticket, CarriesAsManyAddressesAsFit) {
  std::vector<rendezvous::RailAddress> v4, v6;
  for (uint16_t i = 1; i <= 12; ++i) {
    v4.push_back(addressOf("10.0.0.5", i));
    v6.push_back(addressOf("fd00::5", i));
  }
  EXPECT_EQ(Ticket::decode(encoded(sample(v4), {}), {}).value().addresses.size(), 9u);
  EXPECT_EQ(Ticket::decode(encoded(sample(v6), {}), {}).value().addresses.size(), 3u);
}

TEST(Ticket, OfAnotherJobKeyOrNoneIsRefused) {
  const Bytes bytes = encoded(sample({addressOf("10.0.0.5", 1)}), kKey);
  for (const security::JobKey& key : {security::JobKey(), kOtherKey}) {
    const StatusOr<Ticket> read = Ticket::decode(bytes, key);
    ASSERT_FALSE(read.hasValue());
    EXPECT_NE(read.status().message().find("AGSPEED_JOB_KEY"), std::string::npos) << read.status().toString();
  }
}

TEST(Ticket, WithAnyByteChangedIsRefused) {
  const Bytes good = encoded(sample({addressOf("10.0.0.5", 1)}), {});
  for (size_t at = 0; at < 118; ++at) {
    Bytes bad = good;
    bad[at] ^= std::byte{0x10};
    EXPECT_FALSE(Ticket::decode(bad, {}).hasValue()) << "byte " << at;
  }
}

TEST(Ticket, TheConnectorsNoteChangesNothingElse) {
  const Ticket ticket = sample({addressOf("10.0.0.5", 1)});
  Bytes bytes = encoded(ticket, kKey);
  EXPECT_EQ(Ticket::note(bytes), 0u);
  Ticket::setNote(bytes, 0xfeedfeedfeedfeed);
  EXPECT_EQ(Ticket::note(bytes), 0xfeedfeedfeedfeed);
  EXPECT_EQ(Ticket::decode(bytes, kKey).value(), ticket);
}

TEST(Ticket, RandomBytesAreRefused) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int i = 0; i < 10000; ++i) {
    Bytes bytes;
    for (std::byte& each : bytes) each = static_cast<std::byte>(random());
    EXPECT_FALSE(Ticket::decode(bytes, {}).hasValue());
  }
}

}  // namespace
}  // namespace agspeed::comm::channel

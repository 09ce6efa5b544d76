// SPDX-License-Identifier: Apache-2.0
// Random and corrupted tickets, hellos and welcomes. None is accepted, and no length in them causes a large allocation.
#include <gtest/gtest.h>

#include "comm/channel/hello.h"
#include "comm/channel/ticket.h"
#include "tests/fuzz/counted_memory.h"
#include "tests/fuzz/random_bytes.h"

namespace agspeed::comm::channel {
namespace {

constexpr int kRounds = 20000;
constexpr size_t kProvenBytes = 118;  ///< size of the authenticated part of a ticket; the connector's note follows
const Ticket::Secret kSecret = {std::byte{7}};

Ticket sampleTicket() {
  Ticket ticket;
  ticket.protection = security::Protection::kAuthenticated;
  ticket.addresses = {{*topology::parseIpAddress("10.0.0.5"), 0, 40000},
                      {*topology::parseIpAddress("fd00::5"), 0, 40001}};
  return ticket;
}

class ChannelFuzz : public testing::Test {
 protected:
  ~ChannelFuzz() override { EXPECT_LT(memory_.peakBytes(), kMaxUnauthenticatedBytes); }

  RandomBytes random_;
  testing::ScopedTrace trace_{__FILE__, __LINE__, "seed " + std::to_string(random_.seed())};
  CountedMemory memory_;
};

TEST_F(ChannelFuzz, SpoiledTicketsAreRefused) {
  std::array<std::byte, Ticket::kBytes> good;
  sampleTicket().encode({}, good);
  for (int i = 0; i < kRounds; ++i) {
    Bytes spoiled = random_.below(4) == 0 ? random_.bytes(kProvenBytes)
                                          : random_.spoil(Bytes(good.begin(), good.begin() + kProvenBytes));
    spoiled.resize(kProvenBytes);
    if (std::equal(spoiled.begin(), spoiled.end(), good.begin())) continue;  // the inserted bytes lay behind the end
    std::array<std::byte, Ticket::kBytes> bytes{};
    std::copy(spoiled.begin(), spoiled.end(), bytes.begin());
    const StatusOr<Ticket> ticket = Ticket::decode(bytes, {});
    ASSERT_FALSE(ticket.hasValue());
    EXPECT_EQ(ticket.status().code(), StatusCode::kInvalidArgument);
  }
}

TEST_F(ChannelFuzz, SpoiledHellosAndWelcomesAreRefused) {
  const Bytes hello = encodeHello({1, 2, 3, {4, 5, "node1", "a record"}}, kSecret, {});
  const Bytes welcome = encodeWelcome({"", {4, 5, "node2", "another"}}, hello, kSecret, {});
  for (int i = 0; i < kRounds; ++i) {
    const bool isNoise = random_.below(4) == 0;
    EXPECT_FALSE(decodeHello(isNoise ? random_.bytes(random_.below(600)) : random_.spoil(hello), kSecret, {}));
    EXPECT_FALSE(
        decodeWelcome(isNoise ? random_.bytes(random_.below(600)) : random_.spoil(welcome), hello, kSecret, {}));
  }
}

/// A peer that has the secret and sends wrong content. Nothing is read beyond the bytes, and lengths are checked.
TEST_F(ChannelFuzz, ProvenHellosOfAnyContentAreReadSafely) {
  for (int i = 0; i < kRounds / 10; ++i) {
    Hello hello = {random_.below(9), 1, 1, {1, 1, "", ""}};
    hello.from.host.assign(random_.below(600), static_cast<char>(random_.below(256)));
    hello.from.record.assign(random_.below(5000), 'r');
    const std::optional<Hello> read = decodeHello(encodeHello(hello, kSecret, {}), kSecret, {});
    ASSERT_TRUE(read);
    EXPECT_LE(read->from.host.size(), 255u);
    EXPECT_LE(read->from.record.size(), 4096u);
  }
}

}  // namespace
}  // namespace agspeed::comm::channel

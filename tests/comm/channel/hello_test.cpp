// SPDX-License-Identifier: Apache-2.0
#include "comm/channel/hello.h"

#include <gtest/gtest.h>

#include <random>

namespace agspeed::comm::channel {
namespace {

const security::JobKey kKey(20, std::byte{7});
const Ticket::Secret kSecret = {std::byte{1}}, kOtherSecret = {std::byte{2}};

Hello sampleHello() { return {5, 6, 7, {8, 9, "node1", "a record"}}; }

TEST(Hello, ReadsBackAndNamesItsListener) {
  const std::vector<std::byte> bytes = encodeHello(sampleHello(), kSecret, kKey);
  EXPECT_EQ(listenerOf(bytes), 5u);
  const std::optional<Hello> read = decodeHello(bytes, kSecret, kKey);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->association, 6u);
  EXPECT_EQ(read->channel, 7u);
  EXPECT_EQ(read->from.domain, 8u);
  EXPECT_EQ(read->from.process, 9u);
  EXPECT_EQ(read->from.host, "node1");
  EXPECT_EQ(read->from.record, "a record");
}

TEST(Hello, IsRefusedWithoutTheSecretOrTheKeyAndWhenChanged) {
  const std::vector<std::byte> good = encodeHello(sampleHello(), kSecret, kKey);
  EXPECT_FALSE(decodeHello(good, kOtherSecret, kKey));
  EXPECT_FALSE(decodeHello(good, kSecret, {}));
  for (size_t at = 0; at < good.size(); ++at) {
    std::vector<std::byte> bad = good;
    bad[at] ^= std::byte{1};
    EXPECT_FALSE(decodeHello(bad, kSecret, kKey)) << "byte " << at;
  }
  for (size_t size = 0; size < good.size(); ++size)
    EXPECT_FALSE(decodeHello(ByteView(good).first(size), kSecret, kKey));
}

TEST(Hello, NamesThatWouldBreakALogLineAreChanged) {
  Hello hello = sampleHello();
  hello.from.host = "a\nb c";
  EXPECT_EQ(decodeHello(encodeHello(hello, kSecret, {}), kSecret, {})->from.host, "a?b?c");
}

TEST(Hello, IsDistinguishedFromNoiseByItsFirstBytes) {
  const std::vector<std::byte> hello = encodeHello(sampleHello(), kSecret, kKey);
  for (size_t size = 0; size <= kHelloMagicBytes; ++size) EXPECT_TRUE(mayBeHello(ByteView(hello).first(size)));
  EXPECT_FALSE(mayBeHello(security::bytesOf("GET / HTTP/1.1")));
}

TEST(Welcome, AnswersOneHelloOnly) {
  const std::vector<std::byte> hello = encodeHello(sampleHello(), kSecret, kKey);
  Hello second = sampleHello();
  second.channel = 8;
  const std::vector<std::byte> bytes = encodeWelcome({"", {1, 2, "node2", "another"}}, hello, kSecret, kKey);
  const std::optional<Welcome> read = decodeWelcome(bytes, hello, kSecret, kKey);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->refusal, "");
  EXPECT_EQ(read->from.host, "node2");
  EXPECT_FALSE(decodeWelcome(bytes, encodeHello(second, kSecret, kKey), kSecret, kKey));
  EXPECT_FALSE(decodeWelcome(bytes, hello, kOtherSecret, kKey));
}

TEST(Welcome, CarriesARefusal) {
  const std::vector<std::byte> hello = encodeHello(sampleHello(), kSecret, kKey);
  const std::vector<std::byte> bytes = encodeWelcome({"too many", {}}, hello, kSecret, kKey);
  EXPECT_EQ(decodeWelcome(bytes, hello, kSecret, kKey)->refusal, "too many");
}

}  // namespace
}  // namespace agspeed::comm::channel

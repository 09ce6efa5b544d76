// SPDX-License-Identifier: Apache-2.0
#include "comm/wire/handshake.h"

#include <random>

#include <gtest/gtest.h>

namespace agspeed::comm::wire {
namespace {

const Claim kClaim = {security::Protection::kAuthenticated, 1, 2, 3};
constexpr security::Digest kSecret = {std::byte{1}, std::byte{2}};
constexpr security::Digest kOtherSecret = {std::byte{1}, std::byte{3}};

TEST(Handshake, BothEndsGetTheSameKey) {
  const Initiator initiator(kClaim, kSecret);
  EXPECT_EQ(readClaim(initiator.request()), kClaim);
  const std::optional<Responder> responder = Responder::answer(initiator.request(), kSecret);
  ASSERT_TRUE(responder.has_value());
  const std::optional<ConfirmBytes> confirm = initiator.confirm(responder->reply());
  ASSERT_TRUE(confirm.has_value());
  EXPECT_TRUE(responder->isConfirmedBy(*confirm));
  EXPECT_EQ(initiator.frameKey(responder->reply()), responder->frameKey());
}

TEST(Handshake, EveryConnectionHasAKeyOfItsOwn) {
  const Initiator initiator(kClaim, kSecret);
  EXPECT_NE(Responder::answer(initiator.request(), kSecret)->frameKey(),
            Responder::answer(initiator.request(), kSecret)->frameKey());
}

TEST(Handshake, APeerWithoutTheSecretIsRefused) {
  EXPECT_FALSE(Responder::answer(Initiator(kClaim, kOtherSecret).request(), kSecret).has_value());
  const Initiator initiator(kClaim, kSecret);
  RequestBytes forged = initiator.request();
  ReplyBytes reflected{};
  std::copy_n(forged.begin(), reflected.size(), reflected.begin());
  EXPECT_FALSE(initiator.confirm(reflected).has_value());
}

TEST(Handshake, AReplayedRequestIsNeverConfirmed) {
  const Initiator initiator(kClaim, kSecret);
  const auto first = Responder::answer(initiator.request(), kSecret);
  const ConfirmBytes recorded = *initiator.confirm(first->reply());
  const auto replayed = Responder::answer(initiator.request(), kSecret);
  ASSERT_TRUE(replayed.has_value());
  EXPECT_FALSE(replayed->isConfirmedBy(recorded));
}

TEST(Handshake, EveryFlippedBitIsFound) {
  const Initiator initiator(kClaim, kSecret);
  const auto responder = Responder::answer(initiator.request(), kSecret);
  const ConfirmBytes confirm = *initiator.confirm(responder->reply());
  for (size_t bit = 0; bit < kRequestBytes * 8; ++bit) {
    RequestBytes request = initiator.request();
    request[bit / 8] ^= std::byte{1} << bit % 8;
    EXPECT_FALSE(Responder::answer(request, kSecret).has_value()) << "request bit " << bit;
  }
  for (size_t bit = 0; bit < kReplyBytes * 8; ++bit) {
    ReplyBytes reply = responder->reply();
    reply[bit / 8] ^= std::byte{1} << bit % 8;
    EXPECT_FALSE(initiator.confirm(reply).has_value()) << "reply bit " << bit;
  }
  for (size_t bit = 0; bit < kConfirmBytes * 8; ++bit) {
    ConfirmBytes changed = confirm;
    changed[bit / 8] ^= std::byte{1} << bit % 8;
    EXPECT_FALSE(responder->isConfirmedBy(changed)) << "confirm bit " << bit;
  }
}

TEST(Handshake, RandomBytesMakeNoClaim) {
  std::mt19937_64 random(11);
  for (int trial = 0; trial < 10000; ++trial) {
    RequestBytes request;
    for (std::byte& byte : request) byte = std::byte(random());
    EXPECT_FALSE(readClaim(request).has_value());
  }
}

}  // namespace
}  // namespace agspeed::comm::wire

// SPDX-License-Identifier: Apache-2.0
#include "comm/messaging/credits.h"

#include <gtest/gtest.h>

namespace agspeed::comm::messaging {
namespace {

TEST(Credits, AreAcquiredUntilTheWindowIsFullAndComeBackWithWhatThePeerConsumed) {
  Credits sender, receiver;
  int numSent = 0;
  while (sender.acquire(60000)) ++numSent;
  EXPECT_GT(numSent, 60);
  EXPECT_LE(static_cast<uint64_t>(numSent) * 60000, Credits::kWindowBytes);
  int numConsumed = 1;
  while (!receiver.consume(60000)) ++numConsumed;
  EXPECT_LT(numConsumed, numSent) << "it is advertised before the sender must wait";
  sender.advertised(receiver.advertise());
  sender.advertised(0);
  for (int i = 0; i < numConsumed; ++i) EXPECT_TRUE(sender.acquire(60000));
  EXPECT_FALSE(sender.acquire(60000));
}

TEST(Credits, EagerZeroCopyMessagesLeaveRoomForEagerCopies) {
  Credits sender;
  while (sender.acquire(kMaxEagerZeroCopyBytes)) continue;
  EXPECT_TRUE(sender.acquire(1000));
}

TEST(Credits, WhatWasNotSentComesBackAtOnce) {
  Credits sender;
  while (sender.acquire(60000)) continue;
  sender.release(60000);
  EXPECT_TRUE(sender.acquire(60000));
  EXPECT_FALSE(sender.acquire(60000));
}

TEST(Credits, WhatIsCancelledMidwayComesBackOnlySoOften) {
  Credits sender;
  uint64_t numReleased = 0;
  while (sender.acquire(kMaxEagerZeroCopyBytes) && numReleased < 2 * Credits::kMaxPartialBytes) {
    sender.releasePartial(kMaxEagerZeroCopyBytes);
    numReleased += kMaxEagerZeroCopyBytes;
  }
  EXPECT_GE(numReleased, Credits::kMaxPartialBytes);
  EXPECT_LT(numReleased, 2 * Credits::kMaxPartialBytes);
}

TEST(Credits, UnexpectedMessagesAreHeldWithinABound) {
  Credits receiver;
  uint64_t numHeld = 0;
  while (receiver.holdUnexpected(100'000)) numHeld += 100'000;
  EXPECT_LE(numHeld, Credits::kMaxUnexpectedBytes);
  EXPECT_GT(numHeld, Credits::kWindowBytes) << "an intact sender keeps below it";
  receiver.releaseUnexpected(100'000);
  EXPECT_TRUE(receiver.holdUnexpected(100'000));
}

}  // namespace
}  // namespace agspeed::comm::messaging

// SPDX-License-Identifier: Apache-2.0
#include "comm/transport/multirail/send_window.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/transport/multirail/receive_window.h"

namespace agspeed::comm::multirail {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;

class SendWindowTest : public testing::Test {
 protected:
  /// Adds a frame of ten bytes with that token.
  uint64_t add(uint64_t token, int rail) {
    transport::OutgoingFrame frame;
    frame.header.kind = wire::FrameKind::kData;
    frame.header.length = 10;
    frame.payload = payload_;
    frame.token = token;
    return window_.add(frame, rail, start_).header.number;
  }
  /// Retransmits all frames that are due on that rail. Returns their tokens.
  std::vector<uint64_t> resendAll(int rail, io::Clock::time_point now) {
    std::vector<uint64_t> tokens;
    while (InFlightFrame* frame = window_.nextToResend()) {
      tokens.push_back(frame->frame.token);
      window_.resend(*frame, rail, now);
    }
    return tokens;
  }
  std::vector<uint64_t> acknowledge(uint64_t next) {
    std::vector<uint64_t> tokens;
    while (const auto frame = window_.acknowledge(next)) tokens.push_back(frame->frame.token);
    return tokens;
  }

  const io::Clock::time_point start_ = io::Clock::now();
  std::vector<std::byte> payload_ = std::vector<std::byte>(10);
  SendWindow window_;
};

TEST_F(SendWindowTest, NumbersFramesFromOne) {
  EXPECT_EQ(add(7, 0), 1u);
  EXPECT_EQ(add(8, 0), 2u);
  EXPECT_THAT(acknowledge(2), ElementsAre(7));
  EXPECT_EQ(add(9, 0), 3u);
}

TEST_F(SendWindowTest, IsFullAtWhatReceiversTake) {
  for (uint64_t token = 1; token <= ReceiveWindow::kFrames; ++token) {
    ASSERT_FALSE(window_.isFull()) << token;
    add(token, 0);
  }
  EXPECT_TRUE(window_.isFull());
  acknowledge(2);
  EXPECT_FALSE(window_.isFull());
}

TEST_F(SendWindowTest, AcknowledgesInOrderAndNothingTwice) {
  for (uint64_t token = 1; token <= 4; ++token) add(token, 0);
  EXPECT_THAT(acknowledge(1), ElementsAre());
  EXPECT_THAT(acknowledge(4), ElementsAre(1, 2, 3));
  EXPECT_THAT(acknowledge(3), ElementsAre());
  EXPECT_THAT(acknowledge(5), ElementsAre(4));
  EXPECT_TRUE(window_.isEmpty());
}

TEST_F(SendWindowTest, WhatALostRailCarriedIsToBeSentAgainInOrder) {
  for (uint64_t token = 1; token <= 5; ++token) add(token, static_cast<int>(token % 2));
  EXPECT_EQ(window_.nextToResend(), nullptr);
  window_.markLost(1, false);
  EXPECT_EQ(window_.numToResend(), 3u);
  EXPECT_EQ(window_.nextToResend()->frame.header.attempt, 0u);
  EXPECT_THAT(resendAll(0, start_), ElementsAre(1, 3, 5));
  EXPECT_EQ(window_.numToResend(), 0u);
  window_.markLost(0, false);
  EXPECT_EQ(window_.nextToResend()->frame.header.attempt, 1u);
  EXPECT_THAT(resendAll(1, start_), ElementsAre(1, 2, 3, 4, 5));
}

TEST_F(SendWindowTest, WhatIsLostWhileItIsSentAgainComesUpOnceMore) {
  for (uint64_t token = 1; token <= 2; ++token) add(token, 0);
  window_.markLost(0, false);
  window_.resend(*window_.nextToResend(), 1, start_);
  window_.markLost(1, false);
  EXPECT_THAT(resendAll(0, start_), ElementsAre(1, 2));
}

TEST_F(SendWindowTest, WhatIsAcknowledgedNeedNotBeSentAgain) {
  for (uint64_t token = 1; token <= 3; ++token) add(token, 0);
  window_.markLost(0, false);
  EXPECT_THAT(acknowledge(3), ElementsAre(1, 2));
  EXPECT_EQ(window_.numToResend(), 1u);
  EXPECT_THAT(resendAll(1, start_), ElementsAre(3));
}

TEST_F(SendWindowTest, AStalledRailThatIsBackHasWhatNothingElseHasCarriedSince) {
  for (uint64_t token = 1; token <= 2; ++token) add(token, 0);
  window_.markLost(0, true);
  window_.resend(*window_.nextToResend(), 1, start_);
  window_.reclaim(0);
  EXPECT_EQ(window_.numToResend(), 0u);
  window_.markLost(1, false);
  EXPECT_THAT(resendAll(0, start_), ElementsAre(1)) << "the second is on rail 0";
}

TEST_F(SendWindowTest, AStalledRailThatIsLostHasNothing) {
  add(1, 0);
  window_.markLost(0, true);
  window_.markLost(0, false);
  window_.reclaim(0);
  EXPECT_THAT(resendAll(1, start_), ElementsAre(1));
}

TEST_F(SendWindowTest, FramesThatWereSentLongAgoExpireEachTimeLater) {
  add(1, 0);
  window_.expire(start_ + milliseconds(29));
  EXPECT_EQ(window_.numToResend(), 0u);
  const io::Clock::time_point second = start_ + milliseconds(30);
  window_.expire(second);
  EXPECT_THAT(resendAll(0, second), ElementsAre(1));
  window_.expire(second + milliseconds(59));
  EXPECT_EQ(window_.numToResend(), 0u);
  window_.expire(second + milliseconds(60));
  EXPECT_EQ(window_.numToResend(), 1u);
}

TEST_F(SendWindowTest, ExpiryStartsAnewWhenTheWayWorks) {
  add(1, 0);
  const io::Clock::time_point second = start_ + milliseconds(30);
  window_.expire(second);
  resendAll(0, second);
  window_.restartTimeout();
  window_.expire(second + milliseconds(30));
  EXPECT_EQ(window_.numToResend(), 1u);
}

TEST_F(SendWindowTest, CancelledFramesKeepTheirNumbersAndOthersOfTheSameBytesTheirPayloads) {
  for (uint64_t token = 1; token <= 2; ++token) add(token, 0);
  window_.cancel(1, payload_);
  window_.markLost(0, false);
  InFlightFrame* cancelled = window_.nextToResend();
  EXPECT_EQ(cancelled->frame.header.kind, wire::FrameKind::kVoid);
  EXPECT_EQ(cancelled->frame.header.number, 1u);
  EXPECT_EQ(cancelled->frame.header.length, 0u);
  EXPECT_TRUE(cancelled->frame.payload.empty());
  window_.resend(*cancelled, 1, start_);
  EXPECT_EQ(window_.nextToResend()->frame.header.kind, wire::FrameKind::kData);
  EXPECT_EQ(window_.nextToResend()->frame.payload.size(), 10u);
}

TEST_F(SendWindowTest, IsEmptyOnceCleared) {
  add(1, 0);
  window_.markLost(0, false);
  window_.clear();
  EXPECT_TRUE(window_.isEmpty());
  EXPECT_EQ(window_.nextToResend(), nullptr);
  EXPECT_FALSE(window_.acknowledge(2));
}

}  // namespace
}  // namespace agspeed::comm::multirail

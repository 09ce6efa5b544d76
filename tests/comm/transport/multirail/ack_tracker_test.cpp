// SPDX-License-Identifier: Apache-2.0
#include "comm/transport/multirail/ack_tracker.h"

#include <gtest/gtest.h>

#include <array>

namespace agspeed::comm::multirail {
namespace {

class AckTrackerTest : public testing::Test {
 protected:
  static wire::FrameHeader frame(uint64_t number, uint32_t attempt = 0) {
    wire::FrameHeader header;
    header.kind = wire::FrameKind::kData;
    header.length = 100;
    header.total = 1000;
    header.number = number;
    header.attempt = attempt;
    return header;
  }
  /// The last frame of a message whose sender keeps it until it is acknowledged.
  static wire::FrameHeader endOfLarge(uint64_t number) {
    wire::FrameHeader header = frame(number);
    header.total = wire::kZeroCopyBytes;
    header.offset = header.total - header.length;
    return header;
  }
  ByteView placeOn(int rail, const wire::FrameHeader& header) {
    const ByteView target = std::span(memory_).subspan(100 * static_cast<size_t>(rail), 100);
    tracker_.place(rail, header, target);
    return target;
  }

  std::array<std::byte, 200> memory_{};
  AckTracker tracker_{2};
};

TEST_F(AckTrackerTest, FramesInAnyOrderAreAcknowledgedUpToTheFirstGap) {
  tracker_.add(frame(2));
  EXPECT_EQ(tracker_.next(), 1u);
  EXPECT_FALSE(tracker_.hasUnsentAck());
  tracker_.add(frame(1));
  EXPECT_EQ(tracker_.next(), 3u);
  EXPECT_TRUE(tracker_.hasUnsentAck());
  EXPECT_FALSE(tracker_.isWanted(2));
  EXPECT_TRUE(tracker_.isWanted(3));
}

TEST_F(AckTrackerTest, AFewBytesAreNotDueAndManyAre) {
  uint64_t number = 0;
  for (; number < 2621; ++number) tracker_.add(frame(number + 1));
  EXPECT_FALSE(tracker_.isDue()) << "262,100 bytes";
  tracker_.add(frame(++number));
  EXPECT_TRUE(tracker_.isDue());
  tracker_.ackSent();
  EXPECT_FALSE(tracker_.isDue());
  EXPECT_FALSE(tracker_.hasUnsentAck());
}

TEST_F(AckTrackerTest, TheEndOfALargeMessageIsDueOnceAllBeforeItIsThere) {
  tracker_.add(endOfLarge(2));
  EXPECT_FALSE(tracker_.isDue());
  tracker_.add(frame(1));
  EXPECT_TRUE(tracker_.isDue());
  tracker_.ackSent();
  EXPECT_FALSE(tracker_.isDue());
}

TEST_F(AckTrackerTest, AnEndBehindTheLastAckStaysDue) {
  tracker_.add(endOfLarge(1));
  tracker_.add(endOfLarge(3));
  tracker_.ackSent();
  EXPECT_FALSE(tracker_.isDue());
  tracker_.add(frame(2));
  EXPECT_TRUE(tracker_.isDue());
}

TEST_F(AckTrackerTest, AnAckThatMayBeLostIsDueAgain) {
  tracker_.add(endOfLarge(1));
  tracker_.ackSent();
  tracker_.ackMayBeLost();
  EXPECT_TRUE(tracker_.isDue());
}

TEST_F(AckTrackerTest, ADuplicateIsAcknowledgedAtOnce) {
  tracker_.add(frame(1));
  tracker_.duplicateSeen(1);
  EXPECT_TRUE(tracker_.isDue());
}

TEST_F(AckTrackerTest, ADuplicateIsAcknowledgedAgain) {
  tracker_.add(frame(1));
  tracker_.add(frame(2));
  tracker_.ackSent();
  tracker_.duplicateSeen(1);
  EXPECT_TRUE(tracker_.isDue());
  tracker_.ackSent();
  EXPECT_FALSE(tracker_.isDue());
}

TEST_F(AckTrackerTest, AFrameThatIsHereIsNotPlacedAgain) {
  EXPECT_TRUE(tracker_.begin(0, frame(1)));
  tracker_.add(frame(1));
  EXPECT_FALSE(tracker_.begin(1, frame(1)));
  EXPECT_FALSE(tracker_.begin(1, frame(1, 1)));
}

TEST_F(AckTrackerTest, OfTwoCopiesTheLaterAttemptCounts) {
  ASSERT_TRUE(tracker_.begin(0, frame(1, 0)));
  EXPECT_FALSE(tracker_.takeEarlierCopy(frame(1, 0)));
  const ByteView target = placeOn(0, frame(1, 0));
  ASSERT_TRUE(tracker_.begin(1, frame(1, 1)));
  const auto copy = tracker_.takeEarlierCopy(frame(1, 1));
  ASSERT_TRUE(copy);
  EXPECT_EQ(copy->rail, 0);
  EXPECT_EQ(copy->target.data(), target.data());
  placeOn(1, frame(1, 1));
  EXPECT_FALSE(tracker_.end(0, frame(1, 0)));
  EXPECT_TRUE(tracker_.end(1, frame(1, 1)));
}

TEST_F(AckTrackerTest, AnEarlierAttemptIsNotPlacedBesideALaterOne) {
  ASSERT_TRUE(tracker_.begin(1, frame(1, 1)));
  placeOn(1, frame(1, 1));
  EXPECT_FALSE(tracker_.begin(0, frame(1, 0)));
  EXPECT_FALSE(tracker_.end(0, frame(1, 0)));
  EXPECT_TRUE(tracker_.end(1, frame(1, 1)));
}

TEST_F(AckTrackerTest, AFrameWithoutPayloadNeedsNoPlace) {
  wire::FrameHeader header = frame(1);
  header.length = 0;
  EXPECT_TRUE(tracker_.end(0, header));
}

TEST_F(AckTrackerTest, ACancelledReceiveIsFoundOnItsRailAloneAndItsFrameStillCounts) {
  ASSERT_TRUE(tracker_.begin(0, frame(1)));
  const ByteView target = placeOn(0, frame(1));
  EXPECT_TRUE(tracker_.cancel(1, target).empty());
  EXPECT_EQ(tracker_.cancel(0, target.subspan(50, 1)).data(), target.data());
  EXPECT_TRUE(tracker_.cancel(0, target).empty()) << "once";
  EXPECT_TRUE(tracker_.end(0, frame(1)));
}

}  // namespace
}  // namespace agspeed::comm::multirail

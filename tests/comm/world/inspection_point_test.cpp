// SPDX-License-Identifier: Apache-2.0
#include "comm/world/inspection_point.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "tests/comm/world/inspection_client.h"

namespace agspeed::comm::world {
namespace {

/// More than the buffers of a socket hold.
const std::string kLongDocument(4 << 20, 'x');

TEST(InspectionPoint, SendsADocumentForEachConnection) {
  std::atomic<int> numAsked = 0;
  const auto point = InspectionPoint::open({3, 97, "0a1b2c3d"}, [&] { return "answer " + std::to_string(++numAsked); });
  ASSERT_NE(point, nullptr);
  EXPECT_EQ(readDocument(connectToPoint(3, 97)), "answer 1");
  EXPECT_EQ(readDocument(connectToPoint(3, 97)), "answer 2");
}

TEST(InspectionPoint, SendsALongDocumentInPackets) {
  const auto point = InspectionPoint::open({4, 97, ""}, [] { return kLongDocument; });
  EXPECT_EQ(readDocument(connectToPoint(4, 97)), kLongDocument);
}

TEST(InspectionPoint, ACallerThatDoesNotReadDelaysOthersForAWhileOnly) {
  const auto point = InspectionPoint::open({5, 97, ""}, [] { return kLongDocument; });
  const io::FileDescriptor silent = connectToPoint(5, 97);
  EXPECT_EQ(readDocument(connectToPoint(5, 97)), kLongDocument);
  EXPECT_LT(readDocument(silent).size(), kLongDocument.size());
}

TEST(InspectionPoint, ACallerThatLeavesChangesNothing) {
  const auto point = InspectionPoint::open({6, 97, ""}, [] { return kLongDocument; });
  for (int i = 0; i < 20; ++i) (void)connectToPoint(6, 97);
  EXPECT_EQ(readDocument(connectToPoint(6, 97)), kLongDocument);
}

TEST(InspectionPoint, CallersThatWaitAreClosedAtItsEnd) {
  auto point = InspectionPoint::open({7, 97, ""}, [] { return kLongDocument; });
  const io::FileDescriptor first = connectToPoint(7, 97), second = connectToPoint(7, 97);
  point.reset();
  EXPECT_LT(readDocument(first).size(), kLongDocument.size());
  (void)readDocument(second);
}

}  // namespace
}  // namespace agspeed::comm::world

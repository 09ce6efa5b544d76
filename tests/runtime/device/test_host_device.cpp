// SPDX-License-Identifier: Apache-2.0
#include "runtime/device/host_device.h"

#include <gtest/gtest.h>

namespace agspeed::runtime {
namespace {

TEST(HostDevice, StreamsAndEventsNeverWait) {
  HostDevice device;
  auto stream = device.newStream();
  auto event = device.newEvent();
  ASSERT_TRUE(stream.isOk() && event.isOk());
  EXPECT_TRUE((*stream)->record(**event).isOk());
  EXPECT_TRUE((*stream)->wait(**event).isOk());
  EXPECT_TRUE((*stream)->synchronize().isOk());
  EXPECT_EQ(device.numStreams(), 1);
}

TEST(HostDevice, ClockNeverGoesBackwards) {
  HostDevice device;
  int64_t last = device.clock().nowNanoseconds();
  for (int i = 0; i < 1000; ++i) {
    const int64_t now = device.clock().nowNanoseconds();
    ASSERT_GE(now, last);
    last = now;
  }
}

}  // namespace
}  // namespace agspeed::runtime

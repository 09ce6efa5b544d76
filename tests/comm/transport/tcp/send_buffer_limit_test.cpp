// SPDX-License-Identifier: Apache-2.0
// The limit of the bytes in the kernel keeps queues short, and does not make a connection slower.
#include "comm/transport/tcp/send_buffer_limit.h"

#include <gtest/gtest.h>

namespace agspeed::comm::tcp {
namespace {

/// The path's rate while the kernel holds at most `limit` bytes, of which `shareOfBytes` is payload.
double carried(const SendBufferLimit& limit, double pathRate, double roundTripSeconds, double shareOfBytes) {
  if (limit.bytes() == 0) return pathRate;
  return std::min(pathRate, shareOfBytes * limit.bytes() / roundTripSeconds);
}

TEST(SendBufferLimit, NoPathIsHeldUpForLongByARateThatWasMeasuredTooLow) {
  for (const double roundTripSeconds : {50e-6, 1e-3, 5e-3, 20e-3, 100e-3}) {
    for (const double pathRate : {1e6, 30e6, 1e9}) {
      for (const double shareOfBytes : {0.5, 0.8, 1.0}) {
        SendBufferLimit limit;
        limit.update(pathRate / 1000, roundTripSeconds);
        for (int i = 0; i < 60; ++i) {
          limit.update(carried(limit, pathRate, roundTripSeconds, shareOfBytes), roundTripSeconds);
        }
        EXPECT_EQ(carried(limit, pathRate, roundTripSeconds, shareOfBytes), pathRate)
            << pathRate << " bytes per second, round trip " << roundTripSeconds << " s, " << shareOfBytes << " held";
      }
    }
  }
}

TEST(SendBufferLimit, LastsAMomentOnAShortPath) {
  SendBufferLimit limit;
  EXPECT_TRUE(limit.update(30e6, 100e-6));
  EXPECT_NEAR(limit.bytes() / 30e6, 6.4e-3, 1e-4);
  EXPECT_FALSE(limit.update(33e6, 100e-6)) << "a little more is no change";
}

TEST(SendBufferLimit, IsLiftedWhereTheKernelKnowsBetterAndDoesNotFlap) {
  SendBufferLimit limit;
  EXPECT_FALSE(limit.update(0, 0)) << "nothing is known yet";
  EXPECT_FALSE(limit.update(1e9, 100e-6)) << "there was none";
  EXPECT_FALSE(limit.update(100e6, 100e-6)) << "640 KB: none was needed a moment ago";
  EXPECT_TRUE(limit.update(50e6, 100e-6));
  EXPECT_GT(limit.bytes(), 0);
  EXPECT_TRUE(limit.update(1e9, 100e-6));
  EXPECT_EQ(limit.bytes(), 0);
}

}  // namespace
}  // namespace agspeed::comm::tcp

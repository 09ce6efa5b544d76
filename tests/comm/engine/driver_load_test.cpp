// SPDX-License-Identifier: Apache-2.0
#include "comm/engine/driver_load.h"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <thread>

namespace agspeed::comm::engine {
namespace {

using io::Clock;
using std::chrono::milliseconds;

class DriverLoadTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::ifstream("/proc/thread-self/schedstat")) GTEST_SKIP() << "this kernel has no counters of its scheduler";
  }

  /// Asks for the share in turns with the work.
  double shareAfter(int count, const std::function<void()>& work) {
    for (int at = 0; at < count; ++at) {
      (void)load_.busyShare(Clock::now());
      work();
    }
    return load_.busyShare(Clock::now());
  }

  static void compute() {
    for (const auto end = Clock::now() + milliseconds(15); Clock::now() < end;) continue;
  }

  DriverLoad load_;
};

TEST_F(DriverLoadTest, AThreadThatComputesIsBusyAlsoIfItWaitsForAProcessor) { EXPECT_GT(shareAfter(20, compute), 0.8); }

TEST_F(DriverLoadTest, AThreadThatSleepsIsNot) {
  (void)shareAfter(20, compute);
  EXPECT_LT(shareAfter(20, [] { std::this_thread::sleep_for(milliseconds(25)); }), 0.5);
}

TEST_F(DriverLoadTest, LongPausesDoNotCount) {
  const double before = shareAfter(20, compute);
  EXPECT_EQ(shareAfter(1, [] { std::this_thread::sleep_for(milliseconds(150)); }), before);
}

}  // namespace
}  // namespace agspeed::comm::engine

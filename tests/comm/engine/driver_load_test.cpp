// SPDX-License-Identifier: Apache-2.0
#include "comm/engine/driver_load.h"

#include <gtest/gtest.h>

#include <fstream>
#include <thread>

namespace agspeed::comm {
namespace {

using std::chrono::milliseconds;

class DriverLoadTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::ifstream("/proc/thread-self/schedstat")) GTEST_SKIP() << "this kernel has no counters of its scheduler";
  }

  DriverLoad load_;
};

TEST_F(DriverLoadTest, AThreadThatComputesIsBusyAlsoIfItWaitsForAProcessor) {
  (void)load_.busyShare(Clock::now());
  const auto end = Clock::now() + milliseconds(200);
  while (Clock::now() < end) continue;
  EXPECT_GT(load_.busyShare(Clock::now()), 0.8);
}

TEST_F(DriverLoadTest, AThreadThatSleepsIsNot) {
  (void)load_.busyShare(Clock::now());
  std::this_thread::sleep_for(milliseconds(300));
  EXPECT_LT(load_.busyShare(Clock::now()), 0.5);
}

TEST_F(DriverLoadTest, AnotherThreadStartsAnew) {
  (void)load_.busyShare(Clock::now());
  std::this_thread::sleep_for(milliseconds(60));
  std::thread([this] { EXPECT_EQ(load_.busyShare(Clock::now()), 0); }).join();
}

}  // namespace
}  // namespace agspeed::comm

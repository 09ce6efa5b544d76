// SPDX-License-Identifier: Apache-2.0
#include "comm/transport/multirail/receive_window.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace agspeed::comm::multirail {
namespace {

TEST(ReceiveWindow, TakesEveryFrameOnceInAnyOrder) {
  std::mt19937 random(3);
  ReceiveWindow window;
  for (uint64_t first = 1; first < 3 * ReceiveWindow::kFrames; first += 500) {
    std::vector<uint64_t> numbers(500);
    std::iota(numbers.begin(), numbers.end(), first);
    std::shuffle(numbers.begin(), numbers.end(), random);
    for (const uint64_t number : numbers) {
      ASSERT_TRUE(window.isWanted(number)) << number;
      window.add(number);
      ASSERT_FALSE(window.isWanted(number)) << number;
    }
    ASSERT_EQ(window.next(), first + 500);
  }
}

TEST(ReceiveWindow, RefusesWhatIsTooFarAhead) {
  ReceiveWindow window;
  EXPECT_TRUE(window.isWanted(ReceiveWindow::kFrames));
  EXPECT_FALSE(window.isWanted(ReceiveWindow::kFrames + 1));
  EXPECT_FALSE(window.isWanted(0));
  EXPECT_FALSE(window.isWanted(UINT64_MAX));
}

}  // namespace
}  // namespace agspeed::comm::multirail

// SPDX-License-Identifier: Apache-2.0
#include "comm/engine/execution_pool.h"

#include <gtest/gtest.h>

#include "comm/messaging/loopback_messenger.h"

namespace agspeed::comm::engine {
namespace {

struct NoListener final : ExecutionListener {
  void executionEnded(Execution&) override {}
  void executionFailed(Execution&, int, const Status&) override {}
};

class Pool : public testing::Test {
 protected:
  Pool() : network_(1), engine_(network_.messenger(0)), pool(engine_, listener_, 0, 4) {}

  static ScheduleKey key(const char* algorithm, int root = 0) {
    return {findAlgorithm(schedule::Collective::kReduce, algorithm), root, nullptr};
  }

 private:
  messaging::LoopbackGroup network_;
  Engine engine_;
  NoListener listener_;

 protected:
  ExecutionPool pool;
};

TEST_F(Pool, ExecutionsThatRunAtOnceAreDifferent) {
  EXPECT_NE(&pool.acquire(key("direct")), &pool.acquire(key("direct")));
}

TEST_F(Pool, AReleasedExecutionIsUsedAgain) {
  Execution& first = pool.acquire(key("direct"));
  pool.release(key("direct"), first);
  EXPECT_EQ(&pool.acquire(key("direct")), &first);
}

TEST_F(Pool, AnotherScheduleHasExecutionsOfItsOwn) {
  Execution& first = pool.acquire(key("direct"));
  pool.release(key("direct"), first);
  EXPECT_NE(&pool.acquire(key("direct", 1)), &first);
  EXPECT_NE(&pool.acquire(key("binomial")), &first);
}

}  // namespace
}  // namespace agspeed::comm::engine

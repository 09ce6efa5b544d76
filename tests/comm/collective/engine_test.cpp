// SPDX-License-Identifier: Apache-2.0
#include "comm/collective/engine.h"

#include <thread>

#include <gtest/gtest.h>

namespace agspeed::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// Has something to send until another thread than the one that made it drives it while `mayFlush`.
class Unflushed final : public Messenger {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void send(Transfer&) override {}
  void receive(Transfer&) override {}
  void forget(uint32_t) override {}
  void cancel(Transfer&, const Status&) override {}
  bool progress(Clock::time_point) override {
    if (std::this_thread::get_id() != user_ && mayFlush) isFlushed_ = true;
    return false;
  }
  bool hasUnsent() const override { return !isFlushed_; }
  void wake() override {}

  std::atomic<bool> mayFlush = true;

 private:
  const std::thread::id user_ = std::this_thread::get_id();
  std::atomic<bool> isFlushed_ = false;
};

TEST(Engine, BytesOfFinishedSendsLeaveThoughTheUserIsBusy) {
  Unflushed messenger;
  Engine engine(messenger);
  // A user who comes back often keeps the background thread away, if nothing is to be done.
  const Clock::time_point limit = Clock::now() + seconds(20);
  while (messenger.hasUnsent() && Clock::now() < limit) {
    engine.kick();
    std::this_thread::sleep_for(milliseconds(5));
  }
  EXPECT_FALSE(messenger.hasUnsent());
}

TEST(Engine, IsDrivenInTheBackgroundAfterALongWait) {
  Unflushed messenger;
  messenger.mayFlush = false;
  Engine engine(messenger);
  const std::atomic<bool> never = false;
  EXPECT_FALSE(engine.wait(never, Clock::now() + milliseconds(50)));
  messenger.mayFlush = true;
  const Clock::time_point limit = Clock::now() + seconds(20);
  while (messenger.hasUnsent() && Clock::now() < limit) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_FALSE(messenger.hasUnsent());
}

}  // namespace
}  // namespace agspeed::comm

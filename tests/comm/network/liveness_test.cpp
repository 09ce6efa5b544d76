// SPDX-License-Identifier: Apache-2.0
// Peers whose process does nothing while their kernel still acknowledges data: messengers that no thread drives.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/transport/faulty/rail_decorator.h"
#include "tests/comm/network/network_group.h"

namespace agspeed::comm::network {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
using testing::Not;

/// A transfer with a name.
struct NamedParcel final : messaging::Transfer {
  NamedParcel(int from, wire::MessageId name, size_t size) : storage(size) {
    peer = from;
    id = name;
    bytes = storage;
  }
  void finished(const Status& result) override {
    isFinished = true;
    status = result;
  }
  std::string describe() const override { return "all_reduce(1 x f32, sum), operation 7"; }

  std::vector<std::byte> storage;
  bool isFinished = false;
  Status status;
};

/// Counts the calls that reach a rail.
class CountingRail final : public faulty::RailDecorator {
 public:
  CountingRail(std::unique_ptr<transport::Rail> inner, int& numTicks)
      : faulty::RailDecorator(std::move(inner)), numTicks_(numTicks) {}

  io::Clock::time_point tick(io::Clock::time_point now) override {
    ++numTicks_;
    return inner().tick(now);
  }

 private:
  int& numTicks_;
};

class Liveness : public testing::Test {
 protected:
  void start(milliseconds peerTimeout) {
    group_ = std::make_unique<NetworkGroup>(2, 1, [&](NetworkOptions& options) { options.peerTimeout = peerTimeout; });
    ASSERT_EQ(group_->exchange(10, 1000, 1), "");
  }
  /// Drives only rank 0.
  bool driveFirst(const std::function<bool()>& isDone, milliseconds limit) {
    const io::Clock::time_point end = io::Clock::now() + limit;
    while (!isDone() && io::Clock::now() < end) (*group_)[0].progress(io::Clock::now() + milliseconds(20));
    return isDone();
  }

  int numTicks_ = 0;  ///< of rank 0's rail, if it is a CountingRail
  std::unique_ptr<NetworkGroup> group_;
};

TEST_F(Liveness, APeerThatDoesNotAnswerIsWarnedOfAndGivenUp) {
  start(milliseconds(1000));
  NamedParcel receive(1, {5, 5, 5}, 100);
  (*group_)[0].receive(receive);
  testing::internal::CaptureStderr();
  const bool isGivenUp = driveFirst([&] { return receive.isFinished; }, milliseconds(20000));
  const std::string log = testing::internal::GetCapturedStderr();
  ASSERT_TRUE(isGivenUp);
  EXPECT_EQ(receive.status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(receive.status.message(),
              HasSubstr("rank 1 is lost to rank 0: its process has not answered over rail 0 (127.0.0.1 to 127.0.0.1)"));
  EXPECT_THAT(log, HasSubstr("rank 0: rank 1 has not answered over rail 0 (127.0.0.1 to 127.0.0.1)"));
  EXPECT_THAT(log, HasSubstr("all_reduce(1 x f32, sum), operation 7 needs it"));
}

TEST_F(Liveness, APeerWithNothingToSayThatAnswersIsWaitedFor) {
  start(milliseconds(600));
  NamedParcel receive(1, {5, 5, 5}, 100);
  (*group_)[0].receive(receive);
  EXPECT_FALSE(group_->drive([&] { return receive.isFinished; }, milliseconds(2000))) << receive.status.toString();
  Parcel send(0, {5, 5, 5}, 100);
  (*group_)[1].send(send);
  ASSERT_TRUE(group_->drive([&] { return receive.isFinished; }));
  EXPECT_TRUE(receive.status.isOk()) << receive.status.toString();
}

TEST_F(Liveness, APeerThatWakesInTimeLosesNothing) {
  start(milliseconds(60000));
  NamedParcel receive(1, {5, 5, 5}, 100000);
  Parcel send(1, {6, 6, 6}, 8 << 20), other(0, {6, 6, 6}, 8 << 20), answer(0, {5, 5, 5}, 100000);
  (*group_)[0].receive(receive);
  (*group_)[0].send(send);
  testing::internal::CaptureStderr();
  EXPECT_FALSE(driveFirst([&] { return receive.isFinished; }, milliseconds(900)));
  (*group_)[1].receive(other);
  (*group_)[1].send(answer);
  const bool isDone = group_->drive([&] { return receive.isFinished && other.numFinished > 0; });
  group_->drive([] { return false; }, milliseconds(300));
  const std::string log = testing::internal::GetCapturedStderr();
  ASSERT_TRUE(isDone);
  EXPECT_TRUE(receive.status.isOk() && other.status.isOk() && send.status.isOk() && answer.status.isOk())
      << receive.status.toString();
  EXPECT_THAT(log, HasSubstr("rank 1 answers again"));
}

TEST_F(Liveness, APeerThatWakesTooLateGetsAReset) {
  start(milliseconds(600));
  NamedParcel first(1, {5, 5, 5}, 100), second(0, {5, 5, 6}, 100);
  (*group_)[0].receive(first);
  (*group_)[1].receive(second);
  ASSERT_TRUE(driveFirst([&] { return first.isFinished; }, milliseconds(20000)));
  ASSERT_TRUE(group_->drive([&] { return second.isFinished; }));
  EXPECT_THAT(second.status.message(), HasSubstr("rank 0 is lost to rank 1: it has given this rank up"));
}

TEST_F(Liveness, APeerThatIsStoppedBeforeItsHandshakeIsGivenUp) {
  group_ =
      std::make_unique<NetworkGroup>(2, 1, [](NetworkOptions& options) { options.peerTimeout = milliseconds(500); });
  NamedParcel receive(1, {5, 5, 5}, 100);
  (*group_)[0].receive(receive);
  ASSERT_TRUE(driveFirst([&] { return receive.isFinished; }, milliseconds(20000)));
  EXPECT_EQ(receive.status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(receive.status.message(), HasSubstr("rank 1 is lost to rank 0: no rail has led to it"));
  EXPECT_THAT(receive.status.message(), HasSubstr("its process does not answer the handshake"));
}

TEST_F(Liveness, ABackgroundTransferSendsNoProbe) {
  start(milliseconds(500));
  NamedParcel receive(1, {5, 5, 5}, 100);
  receive.isBackground = true;
  (*group_)[0].receive(receive);
  driveFirst([] { return false; }, milliseconds(50));
  const uint64_t numFrames = (*group_)[0].counters().rails[0].numFrames;
  EXPECT_FALSE(driveFirst([&] { return receive.isFinished; }, milliseconds(1500)));
  EXPECT_EQ((*group_)[0].counters().rails[0].numFrames, numFrames);
}

TEST_F(Liveness, NoTimersRunWhileNothingHappens) {
  group_ = std::make_unique<NetworkGroup>(2, 1, [&](NetworkOptions& options) {
    if (options.rank > 0) return;
    options.decorate = [&](std::unique_ptr<transport::Rail> rail) {
      return std::make_unique<CountingRail>(std::move(rail), numTicks_);
    };
  });
  ASSERT_EQ(group_->exchange(10, 1000, 1), "");
  group_->drive([] { return false; }, milliseconds(300));
  numTicks_ = 0;
  const io::Clock::time_point end = io::Clock::now() + milliseconds(1500);
  while (io::Clock::now() < end) (*group_)[0].progress(end);
  EXPECT_LE(numTicks_, 10);
}

}  // namespace
}  // namespace agspeed::comm::network

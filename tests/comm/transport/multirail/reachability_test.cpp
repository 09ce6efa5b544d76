// SPDX-License-Identifier: Apache-2.0
#include "comm/transport/multirail/reachability.h"

#include <gtest/gtest.h>

namespace agspeed::comm::multirail {
namespace {

using std::chrono::milliseconds;
using Verdict = Reachability::Verdict;

class ReachabilityTest : public testing::Test {
 protected:
  /// Loses all rails at time zero.
  void lose(transport::LossCause first, transport::LossCause second) {
    peer_.railDown(0, first, "the first failure", start_);
    peer_.railDown(1, second, "the second failure", start_);
  }
  void tick(int numTicks) {
    for (int i = 0; i < numTicks; ++i) peer_.tick();
  }
  Verdict checkAfter(milliseconds time, bool mayStillReceive = false) {
    return peer_.check(start_ + time, mayStillReceive, options_);
  }

  const io::Clock::time_point start_ = io::Clock::now();
  const ReachabilityOptions options_ = {.peerTimeout = milliseconds(10000), .connectTimeout = milliseconds(1000)};
  Reachability peer_{2};
};

TEST_F(ReachabilityTest, APeerIsReachedByItsFirstRail) {
  EXPECT_FALSE(peer_.isReached());
  EXPECT_TRUE(peer_.railUp(1));
  EXPECT_FALSE(peer_.railUp(1)) << "it was up";
  EXPECT_TRUE(peer_.isReached());
  EXPECT_TRUE(peer_.wasReached());
  EXPECT_TRUE(peer_.isUp(1));
  EXPECT_FALSE(peer_.isUp(0));
}

TEST_F(ReachabilityTest, ALostRailSaysWhetherItWasUp) {
  peer_.railUp(0);
  EXPECT_TRUE(peer_.railDown(0, transport::LossCause::kClosed, "closed", start_));
  EXPECT_FALSE(peer_.railDown(0, transport::LossCause::kRefused, "refused", start_));
  EXPECT_EQ(peer_.lastFailure(), "refused");
}

TEST_F(ReachabilityTest, NoPeerIsJudgedBeforeARailHasFailedOrWhileOneLeadsToIt) {
  EXPECT_EQ(checkAfter(milliseconds(100'000)), Verdict::kFine);
  peer_.railUp(0);
  peer_.railDown(1, transport::LossCause::kUnreachable, "cut", start_);
  EXPECT_FALSE(peer_.isSought());
  EXPECT_EQ(checkAfter(milliseconds(100'000)), Verdict::kFine);
}

TEST_F(ReachabilityTest, WarnsOnceAndThenGivesUp) {
  peer_.railUp(0);
  lose(transport::LossCause::kStalled, transport::LossCause::kUnreachable);
  EXPECT_TRUE(peer_.isSought());
  EXPECT_EQ(checkAfter(milliseconds(500)), Verdict::kFine);
  EXPECT_EQ(checkAfter(milliseconds(501)), Verdict::kWarn);
  EXPECT_EQ(checkAfter(milliseconds(10'000)), Verdict::kFine);
  EXPECT_EQ(checkAfter(milliseconds(10'001)), Verdict::kUnreachable);
  EXPECT_EQ(peer_.downFor(start_ + milliseconds(10'001)), milliseconds(10'001));
}

TEST_F(ReachabilityTest, ARailThatIsBackStartsTheClockAnew) {
  peer_.railUp(0);
  lose(transport::LossCause::kStalled, transport::LossCause::kUnreachable);
  peer_.railUp(1);
  peer_.railDown(1, transport::LossCause::kClosed, "closed", start_ + milliseconds(9000));
  EXPECT_EQ(checkAfter(milliseconds(19'000)), Verdict::kWarn);
  EXPECT_EQ(checkAfter(milliseconds(19'001)), Verdict::kUnreachable);
}

TEST_F(ReachabilityTest, APeerThatRefusesConnectionsHasEndedAfterThreeQuietTicks) {
  peer_.railUp(0);
  lose(transport::LossCause::kRefused, transport::LossCause::kRefused);
  tick(2);
  EXPECT_EQ(checkAfter({}), Verdict::kFine);
  peer_.heard();
  tick(2);
  EXPECT_EQ(checkAfter({}), Verdict::kFine) << "something it sent before has arrived";
  tick(1);
  EXPECT_EQ(checkAfter({}, true), Verdict::kFine) << "its own connections are open";
  EXPECT_EQ(checkAfter({}), Verdict::kEnded);
}

TEST_F(ReachabilityTest, APeerThatRefusesConnectionsOnOneRailMayBeThere) {
  lose(transport::LossCause::kRefused, transport::LossCause::kClosed);
  tick(10);
  EXPECT_EQ(checkAfter({}), Verdict::kFine);
}

TEST_F(ReachabilityTest, AnAddressThatNeverAnsweredIsKnownToBeWrongSooner) {
  lose(transport::LossCause::kUnreachable, transport::LossCause::kUnreachable);
  EXPECT_EQ(checkAfter(milliseconds(1001)), Verdict::kUnreachable);
}

TEST_F(ReachabilityTest, APeerThatWasFoundMayBeBusy) {
  for (const transport::LossCause cause : {transport::LossCause::kClosed, transport::LossCause::kSilent}) {
    peer_ = Reachability(2);
    peer_.railDown(0, cause, "no handshake", start_);
    lose(transport::LossCause::kUnreachable, transport::LossCause::kUnreachable);
    EXPECT_NE(checkAfter(milliseconds(9000)), Verdict::kUnreachable) << toString(cause);
    EXPECT_EQ(checkAfter(milliseconds(10'001)), Verdict::kUnreachable) << toString(cause);
  }
}

TEST_F(ReachabilityTest, ARailWithoutPartnerSaysNothingOfThePeer) {
  peer_.railDown(1, transport::LossCause::kUnpaired, "no rail left for it", start_);
  EXPECT_FALSE(peer_.isSought());
  EXPECT_EQ(peer_.lastFailure(), "");
  peer_.railDown(0, transport::LossCause::kRefused, "refused", start_);
  tick(3);
  EXPECT_EQ(checkAfter({}), Verdict::kEnded) << "the other one alone counts";
}

TEST_F(ReachabilityTest, ALostPeerStaysLost) {
  peer_.railUp(0);
  peer_.markLost();
  EXPECT_TRUE(peer_.isLost());
  EXPECT_FALSE(peer_.wasReached());
}

}  // namespace
}  // namespace agspeed::comm::multirail

// SPDX-License-Identifier: Apache-2.0
// The longest payload depends on the rates of the rails.
#include <gtest/gtest.h>

#include "comm/transport/multirail/multirail_transport.h"
#include "tests/comm/transport/fake_rail.h"

namespace agspeed::comm::multirail {
namespace {

struct IgnoringSink final : transport::Transport::Sink {
  std::span<std::byte> place(int, const wire::FrameHeader&) override { return {}; }
  void arrived(int, const wire::FrameHeader&) override {}
  void acknowledged(int, uint64_t) override {}
  void writable(int) override {}
  void lost(int, transport::LossCause, const Status&) override {}
};

class PayloadLength : public testing::TestWithParam<int> {
 protected:
  static constexpr int kPeer = 1;

  PayloadLength() {
    transport::Rails owned;
    for (int i = 0; i < GetParam(); ++i) {
      auto rail = std::make_unique<transport::FakeRail>();
      rail->can.maxPayloadBytes = wire::kMaxPayloadBytes;
      rails_.push_back(rail.get());
      owned.push_back(std::move(rail));
    }
    multirail_ = std::make_unique<MultirailTransport>(std::move(owned), names_, MultirailOptions{});
    multirail_->attach(sink_);
    multirail_->connect(kPeer);
    for (transport::FakeRail* rail : rails_) rail->sink->writable(kPeer);
    multirail_->send(kPeer, {});
  }
  /// The longest payload if all rails carry that rate.
  uint32_t longestAt(double bytesPerSecond) {
    for (transport::FakeRail* rail : rails_) rail->secondsPerByte = 1 / bytesPerSecond;
    return longest();
  }
  uint32_t longest() {
    (void)multirail_->tick(io::Clock::now());
    return multirail_->capabilities(kPeer).maxPayloadBytes;
  }

  IgnoringSink sink_;
  std::vector<transport::FakeRail*> rails_;
  rendezvous::RankNames names_;
  std::unique_ptr<MultirailTransport> multirail_;
};

TEST_P(PayloadLength, IsThatOfOrdinaryRailsUntilTheirRatesAreKnown) { EXPECT_EQ(longest(), RailScheduler::kLongBytes); }

TEST_P(PayloadLength, IsTheLongestWhereThatTakesNextToNoTime) {
  EXPECT_EQ(longestAt(1e9), wire::kMaxPayloadBytes);
  EXPECT_EQ(longestAt(1.2e8), RailScheduler::kLongBytes) << "1 Gbit/s";
  EXPECT_EQ(longestAt(1e9), wire::kMaxPayloadBytes);
}

TEST_P(PayloadLength, RailsThatShareAMessageShareLongerPartsWhereTheyAreQuick) {
  const uint32_t ordinary = multirail_->capabilities(kPeer).segmentBytes;
  (void)longestAt(1e9);
  EXPECT_GE(multirail_->capabilities(kPeer).segmentBytes, RailScheduler::kQuickSharedBytes);
  (void)longestAt(1e7);
  EXPECT_EQ(multirail_->capabilities(kPeer).segmentBytes, ordinary);
}

TEST_P(PayloadLength, FollowsTheSlowestRail) {
  (void)longestAt(1e9);
  rails_.back()->secondsPerByte = 1e-8;
  EXPECT_EQ(longest(), RailScheduler::kLongBytes);
}

INSTANTIATE_TEST_SUITE_P(Rails, PayloadLength, testing::Values(1, 3),
                         [](const auto& info) { return std::to_string(info.param); });

}  // namespace
}  // namespace agspeed::comm::multirail

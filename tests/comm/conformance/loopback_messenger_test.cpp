// SPDX-License-Identifier: Apache-2.0
#include "comm/messaging/loopback_messenger.h"

#include "tests/comm/conformance/messenger_suite.h"

namespace agspeed::comm::conformance {
namespace {

struct Loopback final : MessengerGroup {
  Loopback(int size, messaging::LoopbackOptions options) : group(size, options) {}
  messaging::Messenger& messenger(int rank) override { return group.messenger(rank); }
  messaging::LoopbackGroup group;
};

MessengerCase loopback(std::string name, messaging::LoopbackOptions options) {
  return {std::move(name), [=](int size) { return std::make_unique<Loopback>(size, options); }};
}

INSTANTIATE_TEST_SUITE_P(Loopback, MessengerConformance,
                         testing::Values(loopback("Eager", {.eagerBytes = SIZE_MAX}), loopback("Default", {}),
                                         loopback("Rendezvous", {.eagerBytes = 0}),
                                         loopback("Shuffled", {.eagerBytes = 64, .shuffleSeed = 42})),
                         [](const auto& info) { return info.param.name; });

TEST(LoopbackMessenger, TransfersWithAKilledRankFailAndNameIt) {
  struct Note final : messaging::Transfer {
    Status status;
    bool isFinished = false;
    void finished(const Status& result) override { status = result, isFinished = true; }
  };
  messaging::LoopbackGroup group(3, {.eagerBytes = 0});
  std::byte bytes[16] = {};
  Note before, after, send;
  for (Note* note : {&before, &after, &send}) {
    note->peer = 2;
    note->bytes = bytes;
  }
  group.messenger(0).receive(before);
  group.messenger(0).send(send);
  group.kill(2);
  group.messenger(0).progress({});
  group.messenger(0).receive(after);
  for (const Note* note : {&before, &after, &send}) {
    EXPECT_TRUE(note->isFinished);
    EXPECT_EQ(note->status.code(), StatusCode::kUnavailable);
    EXPECT_NE(note->status.message().find("rank 2 is gone"), std::string::npos) << note->status.toString();
  }
}

}  // namespace
}  // namespace agspeed::comm::conformance

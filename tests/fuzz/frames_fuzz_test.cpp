// SPDX-License-Identifier: Apache-2.0
// Sends intact frames with senseless content to the messenger.
#include <gtest/gtest.h>

#include "comm/messaging/transport_messenger.h"
#include "tests/comm/transport/fake_rail.h"
#include "tests/fuzz/random_bytes.h"

namespace agspeed::comm::messaging {
namespace {

struct FuzzTransfer final : Transfer {
  void finished(const Status&) override { ++numFinished; }

  Bytes storage;
  int numFinished = 0;
};

void talkNonsense(RandomBytes& random) {
  const rendezvous::RankNames names;
  io::Poller poller;
  auto owned = std::make_unique<transport::FakeTransport>();
  owned->can = {.isReliable = true, .isAcknowledging = true, .segmentBytes = 512, .maxPayloadBytes = 4096};
  owned->room = 50;
  transport::FakeTransport& transport = *owned;
  std::vector<std::unique_ptr<FuzzTransfer>> transfers;
  {
    TransportMessenger messenger(0, 2, names, std::move(owned), poller);
    const auto someId = [&] { return wire::MessageId{1, static_cast<uint32_t>(random.below(40)), 1}; };
    const auto someSize = [&] { return random.below(5) == 0 ? 65000 + random.below(2000) : random.below(600); };
    uint64_t used = 0;
    for (int round = 0; round < 400; ++round) {
      switch (random.below(8)) {
        case 0: {
          auto& transfer = transfers.emplace_back(std::make_unique<FuzzTransfer>());
          transfer->storage.resize(someSize());
          transfer->bytes = transfer->storage;
          transfer->peer = 1;
          // Each name is used once per direction. The senseless frames come from the peer.
          const bool isSend = random.below(2) == 0;
          transfer->id = {1, static_cast<uint32_t>(used % 40), 1 + used / 40};
          ++used;
          isSend ? messenger.send(*transfer) : messenger.receive(*transfer);
          break;
        }
        case 1: {
          const auto open =
              std::find_if(transfers.begin(), transfers.end(), [](auto& each) { return !each->numFinished; });
          if (open != transfers.end()) messenger.cancel(**open, unavailable("enough"));
          break;
        }
        case 2:
          if (transport.sent.empty()) break;
          {
            const uint64_t token = transport.sent.front().token;
            transport.sent.erase(transport.sent.begin());
            ++transport.room;
            transport.sink->acknowledged(1, token);
            transport.sink->writable(1);
          }
          break;
        default: {
          wire::FrameHeader header;
          header.kind = wire::FrameKind(1 + random.below(9));
          header.id = someId();
          header.id.sequence = 1 + random.below(1 + used / 40 + 1);
          header.total = someSize();
          header.consumed = random.below(2) == 0 ? 0 : random.below(100000);
          if ((header.kind == wire::FrameKind::kData || header.kind == wire::FrameKind::kEager) && header.total > 0) {
            header.offset = random.below(header.total);
            header.length = static_cast<uint32_t>(1 + random.below(header.total - header.offset));
            const std::span<std::byte> place = transport.sink->place(1, header);
            ASSERT_TRUE(place.empty() || place.size() == header.length);
            std::fill(place.begin(), place.end(), std::byte{1});
          }
          transport.sink->arrived(1, header);
        }
      }
      if (random.below(4) == 0) messenger.progress({});
    }
    transport.room = 1 << 20;  // so that the messenger need not wait for room when it ends
    transport.sink->writable(1);
  }
  for (const auto& transfer : transfers) EXPECT_LE(transfer->numFinished, 1);
}

TEST(FramesFuzz, FramesThatMakeNoSenseDoNoHarm) {
  RandomBytes random;
  SCOPED_TRACE("seed " + std::to_string(random.seed()));
  // A peer that sends more bytes than a message has is given up, so each messenger lives only briefly.
  for (int life = 0; life < 100 && !testing::Test::HasFatalFailure(); ++life) talkNonsense(random);
}

}  // namespace
}  // namespace agspeed::comm::messaging

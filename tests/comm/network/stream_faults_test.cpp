// SPDX-License-Identifier: Apache-2.0
// Faults that the seals must detect: bits that flip, cut connections and repeated bytes in transit. Also rails that
// fail and recover.
#include <algorithm>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/base/log.h"
#include "tests/comm/network/network_group.h"
#include "tests/comm/network/relay.h"

namespace agspeed::comm::network {
namespace {

using std::chrono::milliseconds;

uint64_t totalLosses(NetworkGroup& group) {
  uint64_t sum = 0;
  for (int rank = 0; rank < group.size(); ++rank) {
    for (const multirail::MultirailCounters::Rail& rail : group[rank].counters().rails) sum += rail.numLosses;
  }
  return sum;
}

/// Keeps what is logged while it lives. Only one may live at a time.
class KeptLog {
 public:
  KeptLog() {
    lines().clear();
    setLogSink([](LogLevel, const std::string& message) {
      const std::scoped_lock lock(mutex());
      lines().push_back(message);
    });
  }
  ~KeptLog() { setLogSink(nullptr); }

  size_t count(std::string_view part) const {
    const std::scoped_lock lock(mutex());
    return static_cast<size_t>(
        std::ranges::count_if(lines(), [&](const std::string& line) { return line.find(part) != std::string::npos; }));
  }

 private:
  static std::mutex& mutex() {
    static std::mutex the;
    return the;
  }
  static std::vector<std::string>& lines() {
    static std::vector<std::string> the;
    return the;
  }
};

struct StreamCase {
  const char* name;
  const char* mode;
  RelayFaults faults;
};

class StreamFaults : public testing::TestWithParam<StreamCase> {};

TEST_P(StreamFaults, DeliverNoWrongByteAndLoseNoMessage) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  RelayFaults faults = GetParam().faults;
  faults.seed = seed;
  const std::string mode = GetParam().mode;
  const KeptLog log;
  const security::JobKey key(mode == "encrypted" ? 32 : 0, std::byte{7});
  auto owned = std::make_unique<RelayStore>(faults, key);
  const RelayStore& store = *owned;
  const auto configure = [&](NetworkOptions& options) {
    options.mode = mode;
    options.key = key;
  };
  NetworkGroup group(3, 2, configure, std::move(owned));
  EXPECT_EQ(group.exchange(80, 1 << 18, seed), "");
  const RelayCounts& counts = store.counts();
  EXPECT_GT(counts.numFlips + counts.numCuts + counts.numRepeats, 0);
  EXPECT_GT(totalLosses(group), 0u);
  // Three ranks with two peers and two rails each: one line for each of their twelve connections at most.
  const size_t numWarnings = log.count("were changed on the way");
  EXPECT_LE(numWarnings, 12u);
  if (faults.bytesPerCut == 0) {
    EXPECT_GT(numWarnings, 0u) << counts.numFlips << " flips, " << counts.numRepeats << " repeats";
  }
  if (counts.numFlips + counts.numRepeats == 0) {
    EXPECT_EQ(numWarnings, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, StreamFaults,
    testing::Values(StreamCase{"FlipsIntegrity", "integrity", {.bytesPerFlip = 200e3}},
                    StreamCase{"FlipsAuthenticated", "opportunistic", {.bytesPerFlip = 200e3}},
                    StreamCase{"FlipsEncrypted", "encrypted", {.bytesPerFlip = 200e3}},
                    StreamCase{"Cuts", "opportunistic", {.bytesPerCut = 200e3}},
                    StreamCase{"Repeats", "opportunistic", {.bytesPerRepeat = 200e3}},
                    StreamCase{
                        "All", "integrity", {.bytesPerFlip = 600e3, .bytesPerCut = 600e3, .bytesPerRepeat = 600e3}}),
    [](const auto& info) { return info.param.name; });

TEST(Rails, AMessageSurvivesTheLossOfARailAndTheRailComesBack) {
  auto owned = std::make_unique<RelayStore>(RelayFaults{});
  RelayStore& store = *owned;
  NetworkGroup group(2, 2, {}, std::move(owned));
  ASSERT_EQ(group.exchange(10, 1 << 16, 1), "");
  const auto setSlow = [&](bool isSlow) {
    for (int rail = 0; rail < 2; ++rail) store.relay(1, rail).setSlow(isSlow);
  };
  setSlow(true);  // so that both rails have unsent data when one fails
  constexpr size_t kBytes = 64 << 20;
  Parcel send(1, {7, 7, 7}, kBytes);
  Parcel receive(0, {7, 7, 7}, kBytes);
  for (size_t i = 0; i < kBytes; i += 64) send.storage[i] = std::byte(i / 64 * 31);
  group[1].receive(receive);
  group[0].send(send);
  ASSERT_TRUE(group.drive([&] { return group[0].counters().rails[1].numBytes > (1 << 20); }));
  store.relay(1, 1).setOpen(false);
  setSlow(false);
  ASSERT_TRUE(group.drive([&] { return send.numFinished > 0 && receive.numFinished > 0; }));
  EXPECT_TRUE(receive.status.isOk()) << receive.status.toString();
  EXPECT_TRUE(receive.storage == send.storage);
  EXPECT_GT(group[0].counters().rails[1].numLosses, 0u);

  store.relay(1, 1).setOpen(true);
  const uint64_t numBefore = group[0].counters().rails[1].numFrames;
  int round = 0;
  EXPECT_TRUE(group.drive([&] {
    EXPECT_EQ(group.exchange(10, 1 << 16, static_cast<uint64_t>(++round)), "");
    return group[0].counters().rails[1].numFrames > numBefore;
  }));
}

TEST(Rails, AreLeftAtOnceWhenThePeersLinkIsLost) {
  std::vector<transport::Rail*> rails;  // rank 0's, then rank 1's
  NetworkGroup group(2, 2, [&](NetworkOptions& options) {
    options.decorate = [&](std::unique_ptr<transport::Rail> rail) {
      rails.push_back(rail.get());
      return rail;
    };
  });
  ASSERT_EQ(group.exchange(10, 1 << 16, 1), "");
  const auto numLosses = [&](size_t rail) { return group[0].counters().rails[rail].numLosses; };
  for (transport::Rail* rail : rails) rail->peerLinkChanged(1, 1, true);
  EXPECT_EQ(numLosses(0) + numLosses(1), 0u) << "good news of what works change nothing";
  for (transport::Rail* rail : rails) rail->peerLinkChanged(1, 1, false);
  EXPECT_EQ(numLosses(0), 0u);
  EXPECT_EQ(numLosses(1), 1u);
  for (transport::Rail* rail : rails) rail->peerLinkChanged(1, 1, true);
  const uint64_t numBefore = group[0].counters().rails[1].numFrames;
  int round = 1;
  EXPECT_TRUE(group.drive([&] {
    EXPECT_EQ(group.exchange(10, 1 << 16, static_cast<uint64_t>(++round)), "");
    return group[0].counters().rails[1].numFrames > numBefore;
  }));
}

TEST(Rails, AllMayBeGoneForAWhile) {
  auto owned = std::make_unique<RelayStore>(RelayFaults{});
  RelayStore& store = *owned;
  NetworkGroup group(2, 2, {}, std::move(owned));
  ASSERT_EQ(group.exchange(10, 1 << 16, 1), "");
  for (int rail = 0; rail < 2; ++rail) store.relay(1, rail).setOpen(false);
  Parcel send(1, {7, 7, 7}, 1 << 20);
  Parcel receive(0, {7, 7, 7}, 1 << 20);
  group[1].receive(receive);
  group[0].send(send);
  group.drive([] { return false; }, milliseconds(300));
  EXPECT_EQ(receive.numFinished, 0);
  for (int rail = 0; rail < 2; ++rail) store.relay(1, rail).setOpen(true);
  ASSERT_TRUE(group.drive([&] { return send.numFinished > 0 && receive.numFinished > 0; }));
  EXPECT_TRUE(receive.status.isOk()) << receive.status.toString();
}

TEST(Rails, APeerThatNoRailLeadsToIsGivenUpAfterItsTimeout) {
  auto owned = std::make_unique<RelayStore>(RelayFaults{});
  RelayStore& store = *owned;
  NetworkGroup group(2, 2, [](NetworkOptions& options) { options.peerTimeout = milliseconds(200); }, std::move(owned));
  ASSERT_EQ(group.exchange(10, 1 << 16, 1), "");
  for (int rail = 0; rail < 2; ++rail) store.relay(1, rail).setOpen(false);
  Parcel send(1, {7, 7, 7}, 1 << 20);
  group[0].send(send);
  ASSERT_TRUE(group.drive([&] { return send.numFinished > 0; }));
  EXPECT_EQ(send.status.code(), StatusCode::kUnavailable);
  EXPECT_NE(send.status.message().find("no rail"), std::string::npos) << send.status.toString();
}

}  // namespace
}  // namespace agspeed::comm::network

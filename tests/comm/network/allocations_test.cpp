// SPDX-License-Identifier: Apache-2.0
// Messages need no heap memory if no more of them are in flight than before. The test counts the process's allocations,
// so it runs in a process of its own.
#include <algorithm>
#include <ostream>

#include <gtest/gtest.h>

#include "tests/comm/network/counted_allocations.h"
#include "tests/comm/network/network_group.h"

namespace agspeed::comm::network {
namespace {

struct Traffic {
  std::string mode;
  size_t numBytes = 0;
  int numRails = 1;
};

/// Makes GoogleTest print the mode instead of bytes.
void PrintTo(const Traffic& traffic, std::ostream* stream) { *stream << traffic.mode; }

class Allocations : public testing::TestWithParam<Traffic> {
 protected:
  static constexpr int kAtOnce = 8, kRounds = 50;

  /// Passes messages from rank 0 to rank 1, some at once, `kRounds` times. Returns true if all arrived.
  bool pass(NetworkGroup& group, std::vector<std::unique_ptr<Parcel>>& parcels) {
    for (int round = 0; round < kRounds; ++round) {
      for (int i = 0; i < kAtOnce; ++i) {
        Parcel& sent = *parcels[static_cast<size_t>(2 * i)];
        Parcel& received = *parcels[static_cast<size_t>(2 * i + 1)];
        sent.id = received.id = {1, 0, sequence_++};
        sent.numFinished = received.numFinished = 0;
        group[1].receive(received);
        group[0].send(sent);
      }
      const io::Clock::time_point limit = io::Clock::now() + std::chrono::seconds(20);
      while (std::any_of(parcels.begin(), parcels.end(), [](const auto& each) { return each->numFinished == 0; })) {
        if (io::Clock::now() > limit) return false;
        group[0].progress({});
        group[1].progress({});
      }
    }
    return true;
  }

  uint64_t sequence_ = 0;
};

TEST_P(Allocations, MessagesMakeNone) {
  const Traffic& traffic = GetParam();
  NetworkGroup group(2, traffic.numRails, [&](NetworkOptions& options) { options.mode = traffic.mode; });
  std::vector<std::unique_ptr<Parcel>> parcels;
  for (int i = 0; i < kAtOnce; ++i) {
    parcels.push_back(std::make_unique<Parcel>(1, wire::MessageId{}, traffic.numBytes));
    parcels.push_back(std::make_unique<Parcel>(0, wire::MessageId{}, traffic.numBytes));
  }
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(pass(group, parcels));
  const size_t before = numAllocations();
  const io::Clock::time_point since = io::Clock::now();
  ASSERT_TRUE(pass(group, parcels));
  const size_t made = numAllocations() - before;
  // Allow a few allocations. More messages may be in flight at a time than before, and timers format texts.
  const auto elapsedMs =
      static_cast<size_t>(std::chrono::duration<double, std::milli>(io::Clock::now() - since).count());
  EXPECT_LE(made, kAtOnce * kRounds / 20 + elapsedMs)
      << "for " << kAtOnce * kRounds << " messages in " << elapsedMs << " ms";
}

INSTANTIATE_TEST_SUITE_P(All, Allocations,
                         testing::Values(Traffic{"integrity", 8}, Traffic{"integrity", 3000},
                                         Traffic{"integrity", 100'000}, Traffic{"integrity", 1 << 20},
                                         Traffic{"integrity", 1 << 20, 3}, Traffic{"opportunistic", 3000}),
                         [](const auto& info) {
                           return info.param.mode + std::to_string(info.param.numBytes) + "On" +
                                  std::to_string(info.param.numRails);
                         });

}  // namespace
}  // namespace agspeed::comm::network

// SPDX-License-Identifier: Apache-2.0
#include "comm/collective/call_history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace agspeed::comm::collective {
namespace {

using testing::AllOf;
using testing::HasSubstr;

engine::CallSignature broadcastOf(uint64_t numBytes) {
  engine::CallSignature signature;
  signature.collective = static_cast<uint8_t>(schedule::Collective::kBroadcast);
  signature.dtype = static_cast<uint8_t>(DType::kU8);
  signature.numBytes = numBytes;
  return signature;
}

/// A history of broadcasts of these sizes.
CallHistory historyOf(int rank, const std::vector<uint64_t>& sizes) {
  CallHistory history("pipeline", rank);
  for (const uint64_t size : sizes) history.add(broadcastOf(size));
  return history;
}

TEST(CallHistory, EqualCallsHaveEqualChainsAndOthersDoNot) {
  CallHistory one = historyOf(0, {1, 2}), same = historyOf(1, {1, 2}), swapped = historyOf(2, {2, 1});
  EXPECT_EQ(one.recent(2)[0].chain, same.recent(2)[0].chain);
  EXPECT_NE(one.recent(2)[0].chain, swapped.recent(2)[0].chain);
  EXPECT_EQ(one.check(1, same.recent(2)), std::nullopt);
}

TEST(CallHistory, TheFirstCallThatDiffersIsNamed) {
  CallHistory own = historyOf(0, {1, 2, 3, 4});
  const auto mismatch = own.check(5, historyOf(5, {1, 20, 30, 4}).recent(4));
  ASSERT_TRUE(mismatch.has_value());
  EXPECT_THAT(*mismatch, AllOf(HasSubstr("as operation 2 of group 'pipeline'"),
                               HasSubstr("rank 0 called broadcast(2 x"), HasSubstr("rank 5 called broadcast(20 x")));
}

TEST(CallHistory, CallsThatDifferInTheirPlanAloneAreDistinguished) {
  engine::CallSignature planned = broadcastOf(8);
  planned.planVersion = 7;
  CallHistory own = historyOf(0, {8}), other("pipeline", 1);
  other.add(planned);
  const auto mismatch = own.check(1, other.recent(1));
  ASSERT_TRUE(mismatch.has_value());
  EXPECT_THAT(*mismatch, AllOf(HasSubstr("with plan 0"), HasSubstr("with plan 7")));
}

TEST(CallHistory, ADifferenceBehindWhatIsSentIsAdmitted) {
  std::vector<uint64_t> sizes(20, 1), others = sizes;
  others[0] = 2;
  const auto mismatch = historyOf(0, sizes).check(1, historyOf(1, others).recent(20));
  ASSERT_TRUE(mismatch.has_value());
  EXPECT_THAT(*mismatch, AllOf(HasSubstr("operation 13"), HasSubstr("calls that differ before it")));
}

TEST(CallHistory, CallsOfARankAheadAreCheckedOnceTheyAreMadeHere) {
  CallHistory own = historyOf(0, {1});
  EXPECT_EQ(own.check(3, historyOf(3, {1, 2}).recent(2)), std::nullopt);
  EXPECT_EQ(own.checkRanksAhead(), std::nullopt);
  own.add(broadcastOf(5));
  const auto mismatch = own.checkRanksAhead();
  ASSERT_TRUE(mismatch.has_value());
  EXPECT_THAT(*mismatch, AllOf(HasSubstr("operation 2"), HasSubstr("rank 3")));
}

TEST(CallHistory, ARankThatWasCaughtUpWithIsForgotten) {
  CallHistory own = historyOf(0, {1});
  EXPECT_EQ(own.check(3, historyOf(3, {1, 2}).recent(2)), std::nullopt);
  own.add(broadcastOf(2));
  EXPECT_EQ(own.checkRanksAhead(), std::nullopt);
  for (size_t i = 0; i < CallHistory::kNumEntries; ++i) own.add(broadcastOf(9));
  EXPECT_EQ(own.checkRanksAhead(), std::nullopt);
}

TEST(CallHistory, WhatIsNotKeptAnyMoreIsNotSent) {
  const CallHistory own = historyOf(0, std::vector<uint64_t>(CallHistory::kNumEntries + 3, 1));
  const RecentCalls calls = own.recent(6);  // 4 to 6 are kept
  EXPECT_EQ(calls[2].sequence, 4u);
  EXPECT_EQ(calls[3].sequence, 0u);
}

TEST(CallHistory, InvalidSignaturesAreCompared) {
  RecentCalls garbage = {};
  garbage[0] = {1, 77, {}};
  garbage[0].signature.collective = 0xff;
  garbage[0].signature.algorithm = UINT32_MAX;
  EXPECT_TRUE(historyOf(0, {1}).check(1, garbage).has_value());
}

}  // namespace
}  // namespace agspeed::comm::collective

// SPDX-License-Identifier: Apache-2.0
// Processes agree on the members of a group by their handles, and refuse handles and numbers that cannot be right.
#include "comm/world/new_members.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace agspeed::comm::world {
namespace {

using testing::HasSubstr;
using Handles = std::vector<std::string>;

class NewMembersTest : public testing::Test {
 protected:
  std::string handle() { return makeHandle(store_).value(); }
  StatusOr<int> claim(int64_t uuid, const Handles& handles, const std::string& own) {
    return claimRank(store_, {uuid, handles, own});
  }
  void expectRefused(const Handles& handles, const std::string& own, const std::string& words) {
    const StatusOr<int> rank = claim(7, handles, own);
    EXPECT_EQ(rank.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(rank.status().message(), HasSubstr(words));
  }

  rendezvous::MemoryStore store_;
};

TEST_F(NewMembersTest, HandlesDiffer) {
  std::set<std::string> handles;
  for (int i = 0; i < 100; ++i) handles.insert(handle());
  EXPECT_EQ(handles.size(), 100u);
}

TEST_F(NewMembersTest, TheOrderOfTheHandlesNumbersTheRanks) {
  const Handles handles = {handle(), handle(), handle()};
  EXPECT_EQ(claim(1, handles, handles[2]).value(), 2);
  EXPECT_EQ(claim(1, handles, handles[0]).value(), 0);
  EXPECT_EQ(claim(2, {handles[2], handles[0]}, handles[0]).value(), 1);
}

TEST_F(NewMembersTest, WrongHandlesAreRefusedAndClaimNothing) {
  const std::string own = handle(), other = handle();
  rendezvous::MemoryStore elsewhere;
  expectRefused({}, own, "there is no handle");
  expectRefused({own, other, other}, own, "1 of 3 handles are repeated");
  expectRefused({other}, own, "is not among the 1 handles");
  expectRefused({own, makeHandle(elsewhere).value()}, own, "comes from a process with another store");
  expectRefused({own, "gloo:0:-1:localhost:29500"}, own, "comes from another backend");
  EXPECT_EQ(claim(7, {own, other}, own).value(), 0);
}

TEST_F(NewMembersTest, ANumberServesOneGroupOnly) {
  const std::string a = handle(), b = handle();
  EXPECT_TRUE(claim(-3, {a, b}, a).hasValue());
  EXPECT_THAT(claim(-3, {a, b}, a).status().message(), HasSubstr("the uuid -3 was already used"));
  EXPECT_THAT(claim(-3, {b, a}, b).status().message(), HasSubstr("already used for other members"));
  EXPECT_EQ(claim(-3, {a, b}, b).value(), 1) << "the second member of the first group";
}

}  // namespace
}  // namespace agspeed::comm::world

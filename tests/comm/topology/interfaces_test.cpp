// SPDX-License-Identifier: Apache-2.0
#include "comm/topology/interfaces.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace agspeed::comm {
namespace {

TEST(Interfaces, IncludeTheLoopback) {
  const auto all = listInterfaces();
  ASSERT_TRUE(all.isOk()) << all.status().toString();
  const auto loopback = std::find_if(all->begin(), all->end(), [](auto& item) { return item.address.isLoopback(); });
  ASSERT_NE(loopback, all->end());
  EXPECT_TRUE(loopback->isUp);
  EXPECT_EQ(loopback->prefixBits, loopback->address.isV6 ? 128 : 8);
}

TEST(Interfaces, TheHostHasOneIdentity) {
  EXPECT_FALSE(hostIdentity().empty());
  EXPECT_EQ(hostIdentity(), hostIdentity());
}

TEST(LinkWatcher, ReportsNothingWhileNothingChanges) {
  LinkWatcher watcher;
  int numReports = 0;
  watcher.read([&](std::string_view, bool) { ++numReports; });
  EXPECT_EQ(numReports, 0);
}

}  // namespace
}  // namespace agspeed::comm

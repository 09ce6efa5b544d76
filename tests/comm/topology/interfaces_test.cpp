// SPDX-License-Identifier: Apache-2.0
#include "comm/topology/interfaces.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace agspeed::comm::topology {
namespace {

using testing::Each;
using testing::ElementsAre;

TEST(Interfaces, IncludeTheLoopback) {
  const auto all = listInterfaces();
  ASSERT_TRUE(all.hasValue()) << all.status().toString();
  const auto loopback = std::find_if(all->begin(), all->end(), [](auto& item) { return item.address.isLoopback(); });
  ASSERT_NE(loopback, all->end());
  EXPECT_TRUE(loopback->isUp);
  EXPECT_EQ(loopback->prefixBits, loopback->address.isV6 ? 128 : 8);
}

TEST(Interfaces, TheHostHasOneIdentity) {
  EXPECT_FALSE(hostIdentity().empty());
  EXPECT_EQ(hostIdentity(), hostIdentity());
}

TEST(Interfaces, OfCloudsThatLimitConnectionsTakeSeveral) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "interfaces";
  for (const auto& [name, vendor] : {std::pair{"ens5", "0x1d0f"}, {"eth0", "0x1ae0"}, {"eth1", "0x15b3"}}) {
    std::filesystem::create_directories(folder / name / "device");
    std::ofstream(folder / name / "device" / "vendor") << vendor << '\n';
  }
  const auto forPeers = [&](const char* name) {
    std::vector<int> found;
    for (const int numPeers : {0, 1, 3, 7, 255}) found.push_back(connectionsToFill(name, numPeers, folder));
    return found;
  };
  EXPECT_THAT(forPeers("ens5"), ElementsAre(8, 8, 6, 3, 2));
  EXPECT_THAT(forPeers("eth0"), ElementsAre(4, 4, 2, 2, 2));
  EXPECT_THAT(forPeers("eth1"), Each(1));
  EXPECT_THAT(forPeers("veth0"), Each(1)) << "says nothing of its vendor";
}

}  // namespace
}  // namespace agspeed::comm::topology

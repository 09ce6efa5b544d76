// SPDX-License-Identifier: Apache-2.0
// The devices that NCCL sees, from a folder that replaces the kernel's list of interfaces.
#include "comm/nccl_net/devices.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace agspeed::comm::nccl {
namespace {

class DevicesTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "/agspeed_devices_" + std::to_string(getpid());
    addInterface("eth0", "1", "25000");
    addInterface("eth1", "0", "25000");
    addInterface("eth2", "1", "-1");
    addInterface("veth", "", "");
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::vector<Device> devices(const std::string& kind, size_t count = 4) {
    return devicesOf({interfaces_.begin(), interfaces_.begin() + static_cast<ptrdiff_t>(count)}, kind, folder_);
  }

 private:
  void addInterface(const std::string& name, const std::string& node, const std::string& speed) {
    std::filesystem::create_directories(folder_ + "/" + name + "/device");
    if (!node.empty()) std::ofstream(folder_ + "/" + name + "/device/numa_node") << node << "\n";
    if (!speed.empty()) std::ofstream(folder_ + "/" + name + "/speed") << speed << "\n";
    topology::Interface& added = interfaces_.emplace_back();
    added.name = name;
  }

  std::string folder_;
  std::vector<topology::Interface> interfaces_;
};

TEST_F(DevicesTest, OneIsAllInterfaces) {
  const std::vector<Device> found = devices("one");
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].name, "agspeed");
  EXPECT_EQ(found[0].speed, 25000 + 25000 + 10000 + 10000);
  EXPECT_EQ(found[0].home, channel::Home());
}

TEST_F(DevicesTest, NodesHaveTheirInterfacesAtHome) {
  const std::vector<Device> found = devices("numa");
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].name, "numa0");
  EXPECT_EQ(found[0].home, (channel::Home{"eth1", "veth"}));
  EXPECT_EQ(found[1].name, "numa1");
  EXPECT_EQ(found[1].home, (channel::Home{"eth0", "eth2"}));
  EXPECT_EQ(found[1].speed, 25000 + 10000);
  EXPECT_NE(found[0].guid, found[1].guid);
}

TEST_F(DevicesTest, NicsAreByThemselves) {
  const std::vector<Device> found = devices("nic");
  ASSERT_EQ(found.size(), 4u);
  EXPECT_EQ(found[2].name, "eth2");
  EXPECT_EQ(found[2].home, channel::Home{"eth2"});
}

TEST_F(DevicesTest, UnsetIsNodesWhereThereAreSeveral) {
  EXPECT_EQ(devices("").size(), 2u);
  const std::vector<Device> single = devices("", 1);
  ASSERT_EQ(single.size(), 1u);
  EXPECT_EQ(single[0].name, "agspeed");
  EXPECT_EQ(devices("nic", 1)[0].home, channel::Home()) << "there are no others";
}

}  // namespace
}  // namespace agspeed::comm::nccl

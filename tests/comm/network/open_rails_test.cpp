// SPDX-License-Identifier: Apache-2.0
#include "comm/network/open_rails.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/transport/faulty/rail_decorator.h"
#include "tests/comm/network/network_group.h"

namespace agspeed::comm::network {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class OpenRailsTest : public testing::Test {
 protected:
  StatusOr<OpenRails> open(const NetworkOptions& options) { return openRails(options, poller_, directory_); }

  rendezvous::MemoryStore store_;
  io::Poller poller_;
  rendezvous::Directory directory_{store_, {}};
};

TEST_F(OpenRailsTest, OneForEachInterfaceAndFlowThoseOfAFlowSideBySide) {
  NetworkOptions options = loopbackOptions(0, 2, 2);
  options.flowsPerInterface = 2;
  const OpenRails opened = open(options).value();
  std::vector<std::string> addresses;
  for (const auto& rail : opened.rails) addresses.push_back(toString(rail->info().address.address));
  EXPECT_THAT(addresses, ElementsAre("127.0.0.1", "127.0.0.2", "127.0.0.1", "127.0.0.2"));
}

TEST_F(OpenRailsTest, TheyListenAndThoseOnLoopbackAreBoundToNoInterface) {
  const OpenRails opened = open(loopbackOptions(0, 2, 1)).value();
  ASSERT_EQ(opened.rails.size(), 1u);
  EXPECT_GT(opened.rails[0]->info().address.port, 0);
  EXPECT_EQ(opened.rails[0]->info().device, "");
}

TEST_F(OpenRailsTest, EachIsDecorated) {
  struct Named final : faulty::RailDecorator {
    using faulty::RailDecorator::RailDecorator;
    std::string describeRoute(int) const override { return "decorated"; }
  };
  NetworkOptions options = loopbackOptions(0, 2, 2);
  options.decorate = [](std::unique_ptr<transport::Rail> rail) { return std::make_unique<Named>(std::move(rail)); };
  const OpenRails opened = open(options).value();
  for (const auto& rail : opened.rails) EXPECT_EQ(rail->describeRoute(1), "decorated");
}

TEST_F(OpenRailsTest, AnAddressOfAnotherHostIsNamed) {
  NetworkOptions options = loopbackOptions(0, 2, 1);
  options.rails[0].address = *topology::parseIpAddress("192.0.2.1");
  const Status status = open(options).status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("cannot listen on 192.0.2.1"));
}

}  // namespace
}  // namespace agspeed::comm::network

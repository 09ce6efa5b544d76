// SPDX-License-Identifier: Apache-2.0
#include "comm/topology/interface_selector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace agspeed::comm::topology {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Interface interface(std::string name, std::string_view address, int prefixBits, bool isUp = true) {
  return {std::move(name), *parseIpAddress(address), prefixBits, isUp};
}

const std::vector<Interface> kHost = {interface("lo", "127.0.0.1", 8),        interface("eth0", "10.0.0.5", 16),
                                      interface("eth0", "fe80::1", 64),       interface("eth1", "10.1.0.5", 16),
                                      interface("eth10", "10.2.0.5", 16),     interface("eth2", "10.3.0.5", 16, false),
                                      interface("docker0", "172.17.0.1", 16), interface("ib0", "fd00::5", 64)};

/// Returns the selected names, or the error's sentence.
std::vector<std::string> selected(std::string_view text, const std::vector<Interface>& all = kHost) {
  const StatusOr<InterfaceSelector> selector = InterfaceSelector::parse(text);
  if (!selector.hasValue()) return {selector.status().message()};
  const auto chosen = selector->select(all);
  if (!chosen.hasValue()) return {chosen.status().message()};
  std::vector<std::string> names;
  for (const Interface& item : *chosen) names.push_back(item.name);
  return names;
}

TEST(InterfaceSelector, TakesRealNetworksByDefault) {
  EXPECT_THAT(selected(""), ElementsAre("eth0", "eth1", "eth10", "ib0"));
}

TEST(InterfaceSelector, TakesLoopbackWhereThereIsNothingElse) {
  EXPECT_THAT(selected("", {kHost[0], kHost[6]}), ElementsAre("lo"));
}

TEST(InterfaceSelector, TakesBeginningsOfNames) {
  EXPECT_THAT(selected("eth1,ib"), ElementsAre("eth1", "eth10", "ib0"));
}

TEST(InterfaceSelector, TakesExactNames) { EXPECT_THAT(selected("=eth1,eth0"), ElementsAre("eth0", "eth1")); }

TEST(InterfaceSelector, TakesNetworks) { EXPECT_THAT(selected("10.1.0.0/16,fd00::/8"), ElementsAre("eth1", "ib0")); }

TEST(InterfaceSelector, LeavesOutWhatFollowsTheCaret) {
  EXPECT_THAT(selected("^docker,lo,eth1"), ElementsAre("eth0", "ib0"));
  EXPECT_THAT(selected("^=eth1,lo,docker0"), ElementsAre("eth0", "eth10", "ib0"));
}

TEST(InterfaceSelector, NamesWhatThereIsWhenNothingMatches) {
  EXPECT_THAT(selected("wlan"), ElementsAre(AllOf(HasSubstr("'wlan'"), HasSubstr("eth2 10.3.0.5 (down)"))));
}

TEST(InterfaceSelector, NamesMalformedEntries) {
  EXPECT_THAT(selected("eth0,,eth1"), ElementsAre(HasSubstr("extra comma")));
  EXPECT_THAT(selected("10.0.0.0/33"), ElementsAre(HasSubstr("'10.0.0.0/33'")));
  EXPECT_THAT(selected("net/8"), ElementsAre(HasSubstr("'net/8'")));
}

/// Returns "name address reason" of each interface, with + if it is selected.
std::vector<std::string> explained(std::string_view text, const std::vector<Interface>& all = kHost) {
  std::vector<std::string> lines;
  for (const InterfaceChoice& choice : InterfaceSelector::parse(text)->explain(all)) {
    lines.push_back((choice.isSelected ? "+ " : "- ") + choice.interface.name + ": " + choice.reason);
  }
  return lines;
}

TEST(InterfaceSelector, SaysWhyEachInterfaceIsTakenOrNot) {
  EXPECT_THAT(explained(""), ElementsAre("- lo: loopback carries a job only where there is nothing else",
                                         "+ eth0: a real interface that is up", "- eth0: its address is link-local",
                                         "+ eth1: a real interface that is up", "+ eth10: a real interface that is up",
                                         "- eth2: it is down", "- docker0: its name is that of a container's bridge",
                                         "+ ib0: a real interface that is up"));
  EXPECT_THAT(
      explained("eth0", {kHost[2], kHost[1], kHost[3]}),
      ElementsAre("- eth0: its address 10.0.0.5 is used", "+ eth0: selected by 'eth0'", "- eth1: not in 'eth0'"));
  EXPECT_THAT(explained("^eth1", {kHost[1], kHost[3]}),
              ElementsAre("+ eth0: not excluded by '^eth1'", "- eth1: excluded by '^eth1'"));
  EXPECT_THAT(explained("", {kHost[0]}), ElementsAre("+ lo: there is nothing but loopback"));
}

TEST(IpAddress, IsPrintedAsItWasRead) {
  for (const char* text : {"10.1.2.3", "fd00::5", "::1"}) EXPECT_EQ(toString(*parseIpAddress(text)), text);
  EXPECT_FALSE(parseIpAddress("10.1.2").has_value());
}

TEST(IpAddress, NetworksAreComparedBitByBit) {
  const auto address = [](const char* text) { return *parseIpAddress(text); };
  EXPECT_TRUE(isSameNetwork(address("10.0.7.1"), address("10.0.4.9"), 22));
  EXPECT_FALSE(isSameNetwork(address("10.0.8.1"), address("10.0.4.9"), 22));
  EXPECT_FALSE(isSameNetwork(address("10.0.8.1"), address("fd00::1"), 0));
}

}  // namespace
}  // namespace agspeed::comm::topology

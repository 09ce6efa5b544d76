// SPDX-License-Identifier: Apache-2.0
#include "comm/topology/link_monitor.h"

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <sys/socket.h>
#include <unistd.h>

namespace agspeed::comm::topology {

LinkMonitor::LinkMonitor() : descriptor_(socket(AF_NETLINK, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, NETLINK_ROUTE)) {
  sockaddr_nl address = {};
  address.nl_family = AF_NETLINK;
  address.nl_groups = RTMGRP_LINK;
  if (descriptor_ >= 0 && bind(descriptor_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    close(descriptor_);
    descriptor_ = -1;
  }
}

LinkMonitor::~LinkMonitor() {
  if (descriptor_ >= 0) close(descriptor_);
}

void LinkMonitor::read(const std::function<void(std::string_view name, bool isUp)>& report) {
  alignas(nlmsghdr) char buffer[8192];
  while (descriptor_ >= 0) {
    const ssize_t size = recv(descriptor_, buffer, sizeof(buffer), 0);
    if (size <= 0) return;
    auto left = static_cast<unsigned>(size);
    for (auto* message = reinterpret_cast<nlmsghdr*>(buffer); NLMSG_OK(message, left);
         message = NLMSG_NEXT(message, left)) {
      if (message->nlmsg_type != RTM_NEWLINK && message->nlmsg_type != RTM_DELLINK) continue;
      const auto* link = static_cast<const ifinfomsg*>(NLMSG_DATA(message));
      auto attributesLeft = static_cast<unsigned>(IFLA_PAYLOAD(message));
      for (auto* attribute = IFLA_RTA(link); RTA_OK(attribute, attributesLeft);
           attribute = RTA_NEXT(attribute, attributesLeft)) {
        if (attribute->rta_type != IFLA_IFNAME) continue;
        report(static_cast<const char*>(RTA_DATA(attribute)), message->nlmsg_type == RTM_NEWLINK &&
                                                                  (link->ifi_flags & IFF_UP) != 0 &&
                                                                  (link->ifi_flags & IFF_RUNNING) != 0);
      }
    }
  }
}

}  // namespace agspeed::comm::topology

// SPDX-License-Identifier: Apache-2.0
// LinkMonitor: reports interfaces that lose or regain their carrier, from the kernel's netlink messages. Only one
// thread at a time may use it.
#pragma once

#include <functional>
#include <string_view>

namespace agspeed::comm::topology {

class LinkMonitor {
 public:
  /// Subscribes to netlink. If netlink cannot be opened, descriptor() is -1, and read() never reports anything.
  LinkMonitor();
  ~LinkMonitor();
  LinkMonitor(const LinkMonitor&) = delete;
  LinkMonitor& operator=(const LinkMonitor&) = delete;

  /// Returns a descriptor that is readable when there is something to report.
  int descriptor() const { return descriptor_; }
  /// Calls `report` for each change since the last call, without blocking.
  void read(const std::function<void(std::string_view name, bool isUp)>& report);

 private:
  int descriptor_;
};

}  // namespace agspeed::comm::topology

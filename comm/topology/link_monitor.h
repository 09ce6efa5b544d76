// SPDX-License-Identifier: Apache-2.0
// LinkMonitor: reports interfaces that lose or regain their carrier, from the kernel's netlink messages. One thread at
// a time.
#pragma once

#include <functional>
#include <string_view>

namespace agspeed::comm {

class LinkMonitor {
 public:
  /// If netlink cannot be opened, descriptor() is -1 and nothing is ever reported.
  LinkMonitor();
  ~LinkMonitor();
  LinkMonitor(const LinkMonitor&) = delete;
  LinkMonitor& operator=(const LinkMonitor&) = delete;

  /// Readable when there is something to report.
  int descriptor() const { return descriptor_; }
  /// Reports all changes so far without blocking.
  void read(const std::function<void(std::string_view name, bool isUp)>& report);

 private:
  int descriptor_;
};

}  // namespace agspeed::comm

// SPDX-License-Identifier: Apache-2.0
#include "comm/topology/link_monitor.h"

#include <gtest/gtest.h>

namespace agspeed::comm::topology {
namespace {

TEST(LinkMonitor, ReportsNothingWhileNothingChanges) {
  LinkMonitor monitor;
  int numReports = 0;
  monitor.read([&](std::string_view, bool) { ++numReports; });
  EXPECT_EQ(numReports, 0);
}

}  // namespace
}  // namespace agspeed::comm::topology

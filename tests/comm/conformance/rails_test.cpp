// SPDX-License-Identifier: Apache-2.0
// The rails that the suite tests: one line each.
#include "comm/transport/faulty/faulty_rail.h"
#include "comm/transport/tcp/tcp_rail.h"
#include "tests/comm/conformance/rail_suite.h"

namespace agspeed::comm {
namespace {

std::unique_ptr<Rail> published(std::unique_ptr<Rail> rail, Directory& directory) {
  EXPECT_TRUE(directory.publish({rail->info().address}).isOk());
  return rail;
}

std::unique_ptr<Rail> tcpRail(Poller& poller, Directory& directory) {
  RailOptions options;
  options.address = {*parseIpAddress("127.0.0.1"), 8, 0};
  return published(tcp::TcpRail::create(options, poller, directory).value(), directory);
}

std::unique_ptr<Rail> faultyRail(Poller& poller, Directory& directory) {
  return std::make_unique<FaultyRail>(tcpRail(poller, directory),
                                      FaultPlan{.seed = 7, .dropped = 0.1, .repeated = 0.1, .delayed = 0.1});
}

INSTANTIATE_TEST_SUITE_P(Rails, RailConformance,
                         testing::Values(RailCase{"Faulty", faultyRail}, RailCase{"Tcp", tcpRail}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace agspeed::comm

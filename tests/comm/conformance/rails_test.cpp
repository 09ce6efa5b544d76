// SPDX-License-Identifier: Apache-2.0
// The rails that the suite tests: one line each.
#include "comm/transport/faulty/faulty_rail.h"
#include "comm/transport/tcp/tcp_rail.h"
#include "tests/comm/conformance/rail_suite.h"

namespace agspeed::comm::conformance {
namespace {

std::unique_ptr<transport::Rail> published(std::unique_ptr<transport::Rail> rail, rendezvous::Directory& directory) {
  EXPECT_TRUE(directory.publish({rail->info().address}).isOk());
  return rail;
}

std::unique_ptr<transport::Rail> tcpRail(io::Poller& poller, rendezvous::Directory& directory) {
  transport::RailOptions options;
  options.address = {*topology::parseIpAddress("127.0.0.1"), 8, 0};
  return published(tcp::TcpRail::create(options, poller, directory).value(), directory);
}

std::unique_ptr<transport::Rail> faultyRail(io::Poller& poller, rendezvous::Directory& directory) {
  return std::make_unique<faulty::FaultyRail>(
      tcpRail(poller, directory), faulty::FaultPlan{.seed = 7, .dropped = 0.1, .repeated = 0.1, .delayed = 0.1});
}

INSTANTIATE_TEST_SUITE_P(Rails, RailConformance,
                         testing::Values(RailCase{"Faulty", faultyRail}, RailCase{"Tcp", tcpRail}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace agspeed::comm::conformance

// SPDX-License-Identifier: Apache-2.0
// The reliable transports that the suite tests: one line each.
#include "comm/transport/faulty/faulty_rail.h"
#include "comm/transport/multirail/multirail_transport.h"
#include "comm/transport/shm/shm_transport.h"
#include "comm/transport/tcp/tcp_rail.h"
#include "tests/comm/conformance/transport_suite.h"

namespace agspeed::comm::conformance {
namespace {

using Decorate = std::function<std::unique_ptr<transport::Rail>(std::unique_ptr<transport::Rail>)>;

TransportGroup::Make multirail(int numRails, const Decorate& decorate) {
  return [=](io::Poller& poller, rendezvous::Directory& directory) -> std::unique_ptr<transport::Transport> {
    transport::Rails rails;
    std::vector<rendezvous::RailAddress> addresses;
    for (int i = 0; i < numRails; ++i) {
      transport::RailOptions options;
      options.address = {*topology::parseIpAddress("127.0.0." + std::to_string(i + 1)), 8, 0};
      options.index = static_cast<size_t>(i);
      options.numRails = static_cast<size_t>(numRails);
      rails.push_back(decorate(tcp::TcpRail::create(options, poller, directory).value()));
      addresses.push_back(rails.back()->info().address);
    }
    EXPECT_TRUE(directory.publish(addresses).isOk());
    multirail::MultirailOptions options;
    options.rank = directory.options().rank;
    return std::make_unique<multirail::MultirailTransport>(std::move(rails), directory.names(), options);
  };
}

std::unique_ptr<transport::Rail> asItIs(std::unique_ptr<transport::Rail> rail) { return rail; }

std::unique_ptr<transport::Rail> faulty(std::unique_ptr<transport::Rail> rail) {
  return std::make_unique<faulty::FaultyRail>(
      std::move(rail), faulty::FaultPlan{.seed = 7, .dropped = 0.05, .repeated = 0.1, .delayed = 0.1});
}

std::unique_ptr<transport::Transport> sharedMemory(io::Poller& poller, rendezvous::Directory& directory) {
  const rendezvous::RailAddress nowhere = {*topology::parseIpAddress("127.0.0.1"), 8, 1};
  auto made = shm::ShmTransport::create(poller, directory, std::chrono::seconds(10)).value();
  EXPECT_TRUE(directory.publish({nowhere}).isOk());
  return made;
}

INSTANTIATE_TEST_SUITE_P(Transports, TransportConformance,
                         testing::Values(TransportCase{"MultirailOfFaulty", multirail(2, faulty)},
                                         TransportCase{"MultirailOfOne", multirail(1, asItIs)},
                                         TransportCase{"MultirailOfThree", multirail(3, asItIs)},
                                         TransportCase{"SharedMemory", sharedMemory}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace agspeed::comm::conformance

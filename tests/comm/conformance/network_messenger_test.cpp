// SPDX-License-Identifier: Apache-2.0
#include "comm/network/network_messenger.h"

#include "tests/comm/conformance/messenger_suite.h"
#include "tests/comm/network/network_group.h"

namespace agspeed::comm::conformance {
namespace {

struct Network final : MessengerGroup {
  Network(int size, int numRails, const network::NetworkGroup::Change& change) : group(size, numRails, change) {}
  messaging::Messenger& messenger(int rank) override { return group[rank]; }
  network::NetworkGroup group;
};

MessengerCase network(std::string name, int numRails, std::string mode) {
  return {std::move(name), [=](int size) {
            return std::make_unique<Network>(size, numRails, [=](network::NetworkOptions& options) {
              options.mode = mode;
              if (mode == "encrypted") options.key = security::JobKey(32, std::byte{7});
            });
          }};
}

MessengerCase sharedMemory(std::string name, const std::function<bool(int rank)>& shares) {
  return {std::move(name), [=](int size) {
            return std::make_unique<Network>(
                size, 2, [=](network::NetworkOptions& options) { options.sharesMemory = shares(options.rank); });
          }};
}

INSTANTIATE_TEST_SUITE_P(Network, MessengerConformance,
                         testing::Values(network("OneRail", 1, "integrity"), network("ThreeRails", 3, "opportunistic"),
                                         network("Encrypted", 2, "encrypted"),
                                         sharedMemory("SharedMemory", [](int) { return true; }),
                                         sharedMemory("SharedByAllButOne", [](int rank) { return rank != 1; })),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace agspeed::comm::conformance

// SPDX-License-Identifier: Apache-2.0
#include "comm/network/open_rails.h"

#include <algorithm>
#include <utility>

#include "comm/topology/interface_selector.h"
#include "comm/transport/tcp/tcp_rail.h"

namespace agspeed::comm::network {
namespace {

StatusOr<std::vector<topology::Interface>> selectInterfaces(const std::string& text) {
  AG_ASSIGN_OR_RETURN(const topology::InterfaceSelector selector, topology::InterfaceSelector::parse(text));
  AG_ASSIGN_OR_RETURN(const std::vector<topology::Interface> all, topology::listInterfaces());
  return selector.select(all);
}

/// Returns the interface of each rail, ordered by flow, then by interface.
StatusOr<std::vector<topology::Interface>> chooseInterfaces(const NetworkOptions& options) {
  AG_ASSIGN_OR_RETURN(const std::vector<topology::Interface> chosen, selectedInterfaces(options));
  const auto most = static_cast<int64_t>(rendezvous::PeerRecord::kMaxRails / std::max<size_t>(chosen.size(), 1));
  const int64_t asked = options.flowsPerInterface;
  if (most < 1 || asked < 0 || asked > most) {
    return invalidArgument(
        "{} interfaces are selected with {} flows each, but at most {} flows in all are possible; select fewer "
        "interfaces or flows",
        chosen.size(), asked, rendezvous::PeerRecord::kMaxRails);
  }
  const int numPeers = options.size - 1;
  const int64_t fitting =
      std::min(most, io::flowsWithin(io::mostDescriptors(), chosen.size(), static_cast<size_t>(numPeers)));
  std::vector<int64_t> flows;
  for (const topology::Interface& each : chosen) {
    flows.push_back(asked > 0 ? asked : std::min<int64_t>(topology::connectionsToFill(each.name, numPeers), fitting));
  }
  std::vector<topology::Interface> rails;
  for (int64_t flow = 0; flow < most; ++flow) {
    for (size_t i = 0; i < chosen.size(); ++i) {
      if (flow < flows[i]) rails.push_back(chosen[i]);
    }
  }
  return rails;
}

StatusOr<std::unique_ptr<transport::Rail>> openRail(transport::RailOptions options, io::Poller& poller,
                                                    rendezvous::Directory& directory) {
  return tcp::TcpRail::create(std::move(options), poller, directory);
}

}  // namespace

StatusOr<std::vector<topology::Interface>> selectedInterfaces(const NetworkOptions& options) {
  if (!options.rails.empty()) return options.rails;
  StatusOr<std::vector<topology::Interface>> selected = selectInterfaces(options.interfaces);
  if (!selected.hasValue() && !options.interfacesFrom.empty())
    return selected.status().withContext(options.interfacesFrom);
  return selected;
}

StatusOr<OpenRails> openRails(const NetworkOptions& options, io::Poller& poller, rendezvous::Directory& directory) {
  AG_ASSIGN_OR_RETURN(const std::vector<topology::Interface> interfaces, chooseInterfaces(options));
  OpenRails opened;
  opened.reservation = std::make_unique<io::FdReservation>(interfaces.size(), static_cast<size_t>(options.size - 1));
  for (const topology::Interface& interface : interfaces) {
    transport::RailOptions rail;
    rail.address = {interface.address, static_cast<uint8_t>(interface.prefixBits), 0};
    // Do not bind a rail with a loopback address to its interface, because its traffic may use other interfaces.
    if (!interface.address.isLoopback()) rail.device = interface.name;
    rail.index = opened.rails.size();
    rail.numRails = interfaces.size();
    rail.isHome = options.home.empty() || std::ranges::find(options.home, interface.name) != options.home.end();
    AG_ASSIGN_OR_RETURN(std::unique_ptr<transport::Rail> made, openRail(std::move(rail), poller, directory));
    opened.rails.push_back(options.decorate ? options.decorate(std::move(made)) : std::move(made));
  }
  return opened;
}

}  // namespace agspeed::comm::network

// SPDX-License-Identifier: Apache-2.0
#include "comm/network/network_messenger.h"

#include <sys/epoll.h>

#include <algorithm>
#include <span>
#include <tuple>
#include <utility>

#include "comm/security/crc32c.h"
#include "runtime/base/knobs.h"
#include "runtime/base/log.h"

namespace agspeed::comm {
namespace {

constexpr std::string_view kOpportunistic = "opportunistic";

/// The mode's name with the defaults applied, or why it cannot be had.
StatusOr<std::string> resolveMode(const NetworkOptions& options) {
  const std::string mode = !options.mode.empty() ? options.mode
                           : options.key.empty() ? std::string(kOpportunistic)
                                                 : std::string(toString(Protection::kAuthenticated));
  if (mode != kOpportunistic && !protectionFromString(mode)) {
    return invalidArgument("AGSPEED_COMM_MODE: '" + mode +
                           "' is no mode: use integrity, authenticated, encrypted or opportunistic");
  }
  if (mode == toString(Protection::kAuthenticated) && options.key.empty()) {
    return invalidArgument(
        "mode authenticated needs a job key: set AGSPEED_JOB_KEY or AGSPEED_JOB_KEY_FILE on all ranks, "
        "or use mode opportunistic");
  }
  return mode;
}

StatusOr<std::vector<Interface>> selectInterfaces(const std::string& text) {
  AG_ASSIGN_OR_RETURN(const InterfaceSelector selector, InterfaceSelector::parse(text));
  AG_ASSIGN_OR_RETURN(const std::vector<Interface> all, listInterfaces());
  return selector.select(all);
}

/// A rail for each interface and flow, those of one flow side by side.
StatusOr<std::vector<Interface>> chooseRails(const NetworkOptions& options) {
  std::vector<Interface> chosen = options.rails;
  if (chosen.empty()) {
    StatusOr<std::vector<Interface>> selected = selectInterfaces(options.interfaces);
    if (!selected && !options.interfacesFrom.empty()) return selected.status().withContext(options.interfacesFrom);
    AG_ASSIGN_OR_RETURN(chosen, std::move(selected));
  }
  const auto most = static_cast<int64_t>(PeerRecord::kMaxRails / std::max<size_t>(chosen.size(), 1));
  const int64_t asked = options.flowsPerInterface;
  if (most < 1 || asked < 0 || asked > most) {
    return invalidArgument("{} interfaces are selected with {} flows each: there may be {} flows in all", chosen.size(),
                           asked, PeerRecord::kMaxRails);
  }
  const int numPeers = options.size - 1;
  const int64_t fitting = std::min(most, flowsWithin(mostDescriptors(), chosen.size(), static_cast<size_t>(numPeers)));
  std::vector<int64_t> flows;
  for (const Interface& each : chosen) {
    flows.push_back(asked > 0 ? asked : std::min<int64_t>(connectionsToFill(each.name, numPeers), fitting));
  }
  std::vector<Interface> rails;
  for (int64_t flow = 0; flow < most; ++flow) {
    for (size_t i = 0; i < chosen.size(); ++i) {
      if (flow < flows[i]) rails.push_back(chosen[i]);
    }
  }
  return rails;
}

}  // namespace

StatusOr<NetworkOptions> NetworkOptions::fromKnobs(int rank, int size) {
  NetworkOptions options;
  options.rank = rank;
  options.size = size;
  std::tie(options.interfacesFrom, options.interfaces) = interfaceSelection();
  options.mode = knobs().commMode;
  options.peerTimeout = std::chrono::milliseconds(knobs().peerTimeoutMs);
  options.flowsPerInterface = knobs().flowsPerInterface;
  options.sharesMemory = knobs().sharedMemory;
  AG_ASSIGN_OR_RETURN(options.key, loadJobKey(knobs().jobKey, knobs().jobKeyFile));
  return options;
}

StatusOr<std::unique_ptr<NetworkMessenger>> NetworkMessenger::create(Store& store, const NetworkOptions& options) {
  AG_ASSIGN_OR_RETURN(std::string mode, resolveMode(options));
  DirectoryOptions directory;
  directory.rank = options.rank;
  directory.size = options.size;
  directory.epoch = options.epoch;
  directory.protection = protectionFromString(mode).value_or(Protection::kAuthenticated);
  directory.key = options.key;
  directory.storeTimeout = options.peerTimeout;
  std::unique_ptr<NetworkMessenger> messenger(new NetworkMessenger(store, std::move(directory), std::move(mode)));
  AG_RETURN_IF_ERROR(messenger->open(options));
  AG_LOG(kInfo, "rank {}: {}", options.rank, messenger->describe());
  return messenger;
}

NetworkMessenger::NetworkMessenger(Store& store, DirectoryOptions options, std::string mode)
    : mode_(std::move(mode)), directory_(store, std::move(options)) {}

Status NetworkMessenger::open(const NetworkOptions& options) {
  AG_ASSIGN_OR_RETURN(const std::vector<Interface> interfaces, chooseRails(options));
  room_.emplace(interfaces.size(), static_cast<size_t>(options.size - 1));
  std::vector<std::unique_ptr<Transport>> rails;
  std::vector<RailAddress> addresses;
  for (const Interface& interface : interfaces) {
    tcp::RailOptions rail;
    rail.address = {interface.address, static_cast<uint8_t>(interface.prefixBits), 0};
    // Loopback addresses may stand for rails whose traffic takes other interfaces.
    if (!interface.address.isLoopback()) rail.device = interface.name;
    rail.index = rails.size();
    rail.numRails = interfaces.size();
    AG_ASSIGN_OR_RETURN(std::unique_ptr<tcp::TcpRail> made, tcp::TcpRail::create(std::move(rail), poller_, directory_));
    addresses.push_back(made->address());
    rails_.push_back(made.get());
    rails.push_back(options.decorate ? options.decorate(std::move(made)) : std::move(made));
  }
  MultirailOptions striping;
  striping.rank = options.rank;
  striping.epoch = options.epoch;
  striping.peerTimeout = options.peerTimeout;
  auto striped = std::make_unique<MultirailTransport>(std::move(rails), striping);
  multirail_ = striped.get();
  messenger_ = std::make_unique<TransportMessenger>(
      options.rank, options.size, besideSharedMemory(std::move(striped), options), poller_, options.peerTimeout);
  if (links_.descriptor() >= 0) linksId_ = poller_.add(links_.descriptor(), EPOLLIN, *this);
  return directory_.publish(std::move(addresses));
}

std::unique_ptr<Transport> NetworkMessenger::besideSharedMemory(std::unique_ptr<Transport> network,
                                                                const NetworkOptions& options) {
  if (!options.sharesMemory || options.size == 1) return network;
  StatusOr<std::unique_ptr<shm::ShmTransport>> local =
      shm::ShmTransport::create(poller_, directory_, options.peerTimeout);
  if (!local) {
    AG_LOG(kWarn, "rank {} talks to ranks of its host over the network: {}", options.rank, local.status().message());
    return network;
  }
  shm_ = local->get();
  return std::make_unique<shm::LocalFirst>(std::move(*local), std::move(network), options.size);
}

NetworkMessenger::~NetworkMessenger() {
  if (messenger_ != nullptr && links_.descriptor() >= 0) poller_.remove(linksId_, links_.descriptor());
}

void NetworkMessenger::ready(uint32_t) {
  links_.read([this](std::string_view name, bool isUp) {
    for (tcp::TcpRail* rail : rails_) {
      if (rail->device() == name) rail->linkChanged(isUp);
    }
    // Only now: before all of them are closed the news of one might take another.
    for (size_t rail = 0; rail < rails_.size(); ++rail) {
      if (rails_[rail]->device() == name) multirail_->linkChanged(static_cast<int>(rail), isUp);
    }
  });
}

uint64_t NetworkMessenger::numRefused() const {
  uint64_t sum = 0;
  for (const tcp::TcpRail* rail : rails_) sum += rail->numRefused();
  return sum;
}

double NetworkMessenger::bytesPerSecond() const {
  double sum = 0;
  for (const tcp::TcpRail* rail : rails_) sum += rail->bytesPerSecond();
  return sum;
}

double NetworkMessenger::roundTripSeconds(int peer) const {
  double least = 0;
  for (const tcp::TcpRail* rail : rails_) {
    const double seconds = rail->leastRoundTripSeconds(peer);
    if (seconds > 0 && (least == 0 || seconds < least)) least = seconds;
  }
  return least;
}

uint32_t NetworkMessenger::host() const {
  if (shm_ == nullptr) return 0;
  // Two hosts of one checksum would only take longer ways.
  const std::string identity = hostIdentity();
  return std::max(1u, crc32c(std::as_bytes(std::span(identity))));
}

const shm::ShmCounters* NetworkMessenger::sharedMemoryCounters() const {
  return shm_ == nullptr ? nullptr : &shm_->counters();
}

std::string NetworkMessenger::describe() const {
  const bool isUnproven = directory_.options().key.empty() && mode_ == toString(Protection::kEncrypted);
  std::string text = formatText("{}{} over {}{}", mode_, isUnproven ? ", opportunistic" : "", rails_.size(),
                                rails_.size() == 1 ? " rail: " : " rails: ");
  for (size_t i = 0; i < rails_.size(); ++i) {
    text += (i > 0 ? ", " : "") + toString(rails_[i]->address().address);
    if (!rails_[i]->device().empty()) text += " (" + rails_[i]->device() + ")";
  }
  return text + (shm_ == nullptr ? "" : "; shared memory on this host");
}

}  // namespace agspeed::comm

// SPDX-License-Identifier: Apache-2.0
#include "comm/network/network_messenger.h"

#include <sys/epoll.h>

#include <algorithm>
#include <span>
#include <utility>

#include "comm/network/open_rails.h"
#include "comm/security/crc32c.h"
#include "comm/topology/interfaces.h"
#include "runtime/base/log.h"

namespace agspeed::comm::network {
namespace {

rendezvous::DirectoryOptions directoryOptions(const NetworkOptions& options, const std::string& mode) {
  rendezvous::DirectoryOptions directory;
  directory.rank = options.rank;
  directory.size = options.size;
  directory.epoch = options.epoch;
  directory.protection = NetworkOptions::protectionIn(mode);
  directory.key = options.key;
  directory.storeTimeout = options.peerTimeout;
  directory.names = options.names;
  return directory;
}

}  // namespace

StatusOr<std::unique_ptr<NetworkMessenger>> NetworkMessenger::create(rendezvous::Store& store,
                                                                     const NetworkOptions& options) {
  AG_ASSIGN_OR_RETURN(std::string mode, options.resolvedMode());
  return create(std::make_unique<rendezvous::Directory>(store, directoryOptions(options, mode)), options,
                std::move(mode));
}

StatusOr<std::unique_ptr<NetworkMessenger>> NetworkMessenger::create(const NetworkOptions& options) {
  AG_ASSIGN_OR_RETURN(std::string mode, options.resolvedMode());
  return create(std::make_unique<rendezvous::Directory>(directoryOptions(options, mode)), options, std::move(mode));
}

StatusOr<std::unique_ptr<NetworkMessenger>> NetworkMessenger::create(std::unique_ptr<rendezvous::Directory> directory,
                                                                     const NetworkOptions& options, std::string mode) {
  std::unique_ptr<NetworkMessenger> messenger(new NetworkMessenger(std::move(directory), std::move(mode)));
  AG_RETURN_IF_ERROR(messenger->open(options));
  AG_LOG(kInfo, "{}: {}", messenger->names().of(options.rank), messenger->describe());
  return messenger;
}

NetworkMessenger::NetworkMessenger(std::unique_ptr<rendezvous::Directory> directory, std::string mode)
    : mode_(std::move(mode)), directory_(std::move(directory)) {}

Status NetworkMessenger::open(const NetworkOptions& options) {
  AG_RETURN_IF_ERROR(poller_.status());
  AG_ASSIGN_OR_RETURN(OpenRails opened, openRails(options, poller_, *directory_));
  reservation_ = std::move(opened.reservation);
  std::vector<rendezvous::RailAddress> addresses;
  for (const auto& rail : opened.rails) {
    addresses.push_back(rail->info().address);
    rails_.push_back(rail.get());
  }
  const multirail::MultirailOptions multirail = {options.rank, options.epoch, {.peerTimeout = options.peerTimeout}};
  auto network = std::make_unique<multirail::MultirailTransport>(std::move(opened.rails), names(), multirail);
  multirail_ = network.get();
  messenger_ = std::make_unique<messaging::TransportMessenger>(options.rank, options.size, names(),
                                                               besideSharedMemory(std::move(network), options), poller_,
                                                               options.peerTimeout);
  if (links_.descriptor() >= 0) linksId_ = poller_.add(links_.descriptor(), EPOLLIN, *this);
  return directory_->publish(std::move(addresses));
}

std::unique_ptr<transport::Transport> NetworkMessenger::besideSharedMemory(
    std::unique_ptr<transport::Transport> network, const NetworkOptions& options) {
  if (!options.sharesMemory || options.size == 1) return network;
  StatusOr<std::unique_ptr<shm::ShmTransport>> local =
      shm::ShmTransport::create(poller_, *directory_, options.peerTimeout);
  if (!local.hasValue()) {
    AG_LOG(kWarn, "{} uses the network, not shared memory, for the ranks of its host: {}", names().of(options.rank),
           local.status().message());
    return network;
  }
  shm_ = local->get();
  return std::make_unique<LocalFirst>(std::move(*local), std::move(network), options.size);
}

NetworkMessenger::~NetworkMessenger() {
  if (messenger_ != nullptr && links_.descriptor() >= 0) poller_.remove(linksId_, links_.descriptor());
}

void NetworkMessenger::ready(uint32_t) {
  links_.read([this](std::string_view name, bool isUp) {
    std::vector<int> changed;
    for (int i = 0; i < std::ssize(rails_); ++i) {
      transport::Rail& rail = *rails_[static_cast<size_t>(i)];
      if (rail.info().device != name) continue;
      rail.linkChanged(isUp);
      changed.push_back(i);
    }
    // Report the changes only after linkChanged() of all rails of the interface. Otherwise the link-state frame about
    // one rail might be sent on another rail of the same interface, whose link is also lost.
    for (const int rail : changed) multirail_->linkChanged(rail, isUp);
  });
}

uint64_t NetworkMessenger::numRefused() const {
  uint64_t sum = 0;
  for (const transport::Rail* rail : rails_) sum += rail->info().numRefused;
  return sum;
}

double NetworkMessenger::bytesPerSecond() const {
  double sum = 0;
  for (const transport::Rail* rail : rails_) sum += rail->info().bytesPerSecond;
  return sum;
}

double NetworkMessenger::roundTripSeconds(int peer) const {
  double least = 0;
  for (const transport::Rail* rail : rails_) {
    const double seconds = rail->minRoundTripSeconds(peer);
    if (seconds > 0 && (least == 0 || seconds < least)) least = seconds;
  }
  return least;
}

uint32_t NetworkMessenger::host() const {
  if (shm_ == nullptr) return 0;
  // Two hosts could have the same checksum. Then operations would treat their ranks as ranks of one host, which makes
  // messages slower, but results stay correct.
  const std::string identity = topology::hostIdentity();
  return std::max(1u, security::crc32c(std::as_bytes(std::span(identity))));
}

const shm::ShmCounters* NetworkMessenger::sharedMemoryCounters() const {
  return shm_ == nullptr ? nullptr : &shm_->counters();
}

bool NetworkMessenger::sharesMemoryWith(int peer) const {
  return shm_ != nullptr && !shm_->describeRoute(peer).empty();
}

std::string NetworkMessenger::describe() const {
  std::string text = formatText("{} over {}{}", mode_, rails_.size(), rails_.size() == 1 ? " rail: " : " rails: ");
  for (size_t i = 0; i < rails_.size(); ++i) {
    const transport::RailInfo rail = rails_[i]->info();
    text += (i > 0 ? ", " : "") + toString(rail.address.address);
    if (!rail.device.empty()) text += " (" + rail.device + ")";
  }
  return text + (shm_ == nullptr ? "" : "; shared memory on this host");
}

}  // namespace agspeed::comm::network

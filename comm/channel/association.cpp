// SPDX-License-Identifier: Apache-2.0
#include "comm/channel/association.h"

#include <sys/epoll.h>

#include <algorithm>
#include <utility>

namespace agspeed::comm::channel {

StatusOr<std::unique_ptr<Association>> Association::open(io::Poller& poller, network::NetworkOptions options, Role role,
                                                         uint32_t number) {
  std::unique_ptr<Association> made(new Association(poller, role, number));
  options.rank = static_cast<int>(role);
  options.size = 2;
  options.epoch = number;
  options.names.set(options.rank, "this process");
  options.names.set(made->peer(), "a process that has not answered");
  AG_ASSIGN_OR_RETURN(made->messenger_, network::NetworkMessenger::create(options));
  made->id_ = poller.add(made->messenger_->descriptor(), EPOLLIN, *made);
  return made;
}

Association::~Association() {
  if (messenger_ != nullptr) poller_.remove(id_, messenger_->descriptor());
}

void Association::introduce(const Introduction& peer) {
  const std::string name = formatText("process {} on {}", peer.process, peer.host);
  messenger_->introduce(this->peer(), name, peer.record);
}

void Association::countLosses() {
  const auto& rails = messenger_->counters().rails;
  losses_.resize(rails.size());
  for (size_t rail = 0; rail < rails.size(); ++rail) {
    Losses& losses = losses_[rail];
    if (numOpen_ > 0) losses.counted += losses.numFound - losses.numHandled;
    losses.numHandled = numOpen_ > 0 ? losses.numFound : rails[rail].numLosses;
    losses.numFound = rails[rail].numLosses;
  }
}

void Association::addTraffic(std::span<const topology::Interface> interfaces,
                             std::span<InterfaceTraffic> traffic) const {
  const auto& rails = messenger_->counters().rails;
  for (size_t rail = 0; rail < rails.size(); ++rail) {
    const auto carrier = std::find_if(interfaces.begin(), interfaces.end(), [&](const topology::Interface& each) {
      return each.address == messenger_->rails()[rail].address;
    });
    if (carrier == interfaces.end()) continue;
    InterfaceTraffic& total = traffic[static_cast<size_t>(carrier - interfaces.begin())];
    total.numBytesSent += rails[rail].numBytes;
    total.numBytesReceived += rails[rail].numBytesReceived;
    if (rail < losses_.size()) total.numLosses += losses_[rail].counted;
  }
}

}  // namespace agspeed::comm::channel

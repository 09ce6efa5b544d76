// SPDX-License-Identifier: Apache-2.0
#include "comm/channel/connector.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace agspeed::comm::channel {

Connector::Connector(io::Poller& poller, Association& association, Ticket ticket, Hello hello,
                     const security::JobKey& key, ControlLine::Owner& owner, io::Clock::time_point deadline)
    : poller_(poller),
      association_(association),
      ticket_(std::move(ticket)),
      hello_(std::move(hello)),
      key_(key),
      owner_(owner),
      deadline_(deadline),
      encodedHello_(encodeHello(hello_, ticket_.secret, key_)) {
  association_.addUser();
  for (const rendezvous::RailAddress& each : ticket_.addresses) start(each);
}

Connector::~Connector() { association_.removeUser(); }

void Connector::start(const rendezvous::RailAddress& target) {
  Attempt& attempt = *attempts_.emplace_back(std::make_unique<Attempt>());
  topology::IpAddress any;
  any.isV6 = target.address.isV6;
  StatusOr<tcp::Socket> socket = tcp::Socket::connect(any, "", target);
  if (!socket.hasValue()) {
    attempt.error = errno;
    attempt.isDecided = true;
    return;
  }
  attempt.socket = std::move(socket).value();
  attempt.watch = std::make_unique<io::Watch>(poller_, attempt.socket.descriptor(), EPOLLOUT, [this, &attempt] {
    attempt.error = attempt.socket.connectError();
    attempt.isDecided = true;
    attempt.watch->stop();
    owner_.lineChanged();
  });
}

void Connector::useIfConnected(Attempt& attempt) {
  if (attempt.error != 0 || !attempt.socket.isOpen()) return;
  attempt.watch.reset();
  line_ = std::make_unique<ControlLine>(poller_, std::move(attempt.socket), kMaxHelloBytes, owner_);
  line_->send(encodedHello_);
}

std::string Connector::listenerName() const {
  std::string text = "process " + std::to_string(ticket_.process) + " at ";
  for (size_t i = 0; i < ticket_.addresses.size(); ++i) {
    text += (i > 0 ? ", " : "") + toString(ticket_.addresses[i].address) + " port " +
            std::to_string(ticket_.addresses[i].port);
  }
  return text;
}

std::optional<Status> Connector::readWelcome(ByteView bytes) {
  const std::optional<Welcome> welcome = decodeWelcome(bytes, encodedHello_, ticket_.secret, key_);
  if (!welcome) {
    return invalidArgument("cannot connect to " + listenerName() +
                           ": the process that answers there does not prove that it is the listener");
  }
  if (!welcome->refusal.empty()) {
    return invalidArgument("cannot connect to " + listenerName() + ": it refuses: " + welcome->refusal);
  }
  association_.introduce(welcome->from);
  return Status();
}

std::optional<Status> Connector::advance(io::Clock::time_point now) {
  for (const auto& attempt : attempts_) {
    if (line_ == nullptr && attempt->isDecided) useIfConnected(*attempt);
  }
  if (line_ != nullptr) {
    if (!attempts_.empty()) attempts_.clear();
    if (const auto record = line_->receive()) return readWelcome(*record);
    if (!line_->isOpen()) {
      return unavailable("cannot connect to " + listenerName() +
                         ": it closed the connection before it answered: its process has ended, or it has closed the "
                         "listener");
    }
  } else if (std::all_of(attempts_.begin(), attempts_.end(), [](const auto& each) { return each->isDecided; })) {
    const int error = attempts_.empty() ? ECONNREFUSED : attempts_.back()->error;
    return unavailable("cannot connect to " + listenerName() + ": " + std::strerror(error) +
                       (error == ECONNREFUSED ? "; its process has ended" : ""));
  }
  if (now < deadline_) return std::nullopt;
  return unavailable("cannot connect to " + listenerName() +
                     ": it has not answered within AGSPEED_PEER_TIMEOUT_MS: it is stopped, its host is down, or no "
                     "link leads there");
}

}  // namespace agspeed::comm::channel

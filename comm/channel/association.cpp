// SPDX-License-Identifier: Apache-2.0
#include "comm/channel/association.h"

#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "comm/rendezvous/directory.h"
#include "runtime/base/log_editor.h"

namespace agspeed::comm {
namespace {

void replaceAll(std::string& text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
}

}  // namespace

/// While it lives, log lines of this thread name processes instead of ranks. It suppresses lines about an association
/// that is no longer used: the peer may have ended, and another process may have its ports.
class Association::Names final : public LogEditor {
 public:
  explicit Names(const Association& association) : association_(association) {}
  std::string edit(std::string message) const override {
    const bool isOver = association_.wasUsed_ && !association_.isUsed();
    return isOver ? "" : association_.named(std::move(message));
  }

 private:
  const Association& association_;
};

StatusOr<std::unique_ptr<Association>> Association::open(Poller& poller, NetworkOptions options, Role role,
                                                         uint32_t number) {
  std::unique_ptr<Association> made(new Association(poller, role, number));
  const Names names(*made);
  options.rank = static_cast<int>(role);
  options.size = 2;
  options.epoch = number;
  AG_ASSIGN_OR_RETURN(made->messenger_, NetworkMessenger::create(made->store_, options));
  AG_ASSIGN_OR_RETURN(const std::optional<std::string> record,
                      made->store_.tryGet(Directory::recordKey(number, options.rank)));
  made->record_ = record.value_or("");
  made->id_ = poller.add(made->messenger_->descriptor(), EPOLLIN, *made);
  return made;
}

Association::~Association() {
  if (messenger_ != nullptr && !record_.empty()) poller_.remove(id_, messenger_->descriptor());
}

void Association::introduce(const Introduction& peer) {
  peerName_ = "process " + std::to_string(peer.process) + " on " + peer.host;
  (void)store_.set(Directory::recordKey(number_, this->peer()), peer.record);  // a MemoryStore does not fail
}

void Association::progress() {
  const Names names(*this);
  (void)messenger_->progress({});
}

void Association::send(Transfer& transfer) {
  const Names names(*this);
  messenger_->send(transfer);
}

void Association::receive(Transfer& transfer) {
  const Names names(*this);
  // Callers start several receives at a time and test them at once, so their control frames can leave together.
  messenger_->beginTurn();
  messenger_->receive(transfer);
}

void Association::cancel(Transfer& transfer, const Status& reason) {
  const Names names(*this);
  messenger_->cancel(transfer, reason);
}

void Association::addTraffic(std::span<const Interface> interfaces, std::span<InterfaceTraffic> traffic) const {
  const auto& rails = messenger_->counters().rails;
  for (size_t rail = 0; rail < rails.size(); ++rail) {
    const auto carrier = std::find_if(interfaces.begin(), interfaces.end(), [&](const Interface& each) {
      return each.address == messenger_->rails()[rail].address;
    });
    if (carrier == interfaces.end()) continue;
    InterfaceTraffic& total = traffic[static_cast<size_t>(carrier - interfaces.begin())];
    total.numBytesSent += rails[rail].numBytes;
    total.numBytesReceived += rails[rail].numBytesReceived;
    total.numLosses += rails[rail].numLosses;
  }
}

std::string Association::peerName() const { return peerName_.empty() ? "a process that has not answered" : peerName_; }

Status Association::describe(const Status& failure) const { return {failure.code(), named(failure.message())}; }

std::string Association::named(std::string text) const {
  replaceAll(text, "rank " + std::to_string(peer()), peerName());
  replaceAll(text, "rank " + std::to_string(static_cast<int>(role_)), "this process");
  return text;
}

}  // namespace agspeed::comm

// SPDX-License-Identifier: Apache-2.0
#include "comm/channel/association.h"

#include <sys/epoll.h>

#include <utility>

#include "comm/rendezvous/directory.h"

namespace agspeed::comm {
namespace {

void replaceAll(std::string& text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
}

}  // namespace

StatusOr<std::unique_ptr<Association>> Association::open(Poller& poller, NetworkOptions options, Role role,
                                                         uint32_t number) {
  std::unique_ptr<Association> made(new Association(poller, role, number));
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

void Association::progress() { (void)messenger_->progress({}); }

std::string Association::peerName() const { return peerName_.empty() ? "a process that has not answered" : peerName_; }

Status Association::describe(const Status& failure) const {
  std::string text = failure.message();
  replaceAll(text, "rank " + std::to_string(peer()), peerName());
  replaceAll(text, "rank " + std::to_string(static_cast<int>(role_)), "this process");
  return {failure.code(), text};
}

}  // namespace agspeed::comm

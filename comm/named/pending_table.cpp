// SPDX-License-Identifier: Apache-2.0
#include "comm/named/pending_table.h"

#include <utility>

namespace agspeed::comm::named {

uint32_t PendingTable::add(const NamedHandle& operation) {
  OwnName& name = *operation->name();
  operation->pendingState().place = pending_.size();
  pending_.push_back(operation);
  name.pending = operation.get();
  operation->pendingState().isSentById =
      name.id != 0 && (operation->pendingState().agreedVersion == name.version || operation->request() == name.request);
  if (!operation->pendingState().isSentById) return 0;
  operation->pendingState().agreedVersion = name.version;
  return name.id;
}

bool PendingTable::knows(const Response::Item& item) const {
  if (item.isFull) return true;
  return item.id != 0 && item.id <= numbered_.size() && numbered_[item.id - 1].agreement != nullptr;
}

AgreementHandle PendingTable::agreementOf(const Response::Item& item) const {
  if (item.isFull) return item.agreement;
  return knows(item) ? numbered_[item.id - 1].agreement : nullptr;
}

NamedHandle PendingTable::take(const Response::Item& item) {
  if (item.id == 0) return take(item.agreement->request.name);
  if (numbered_.size() < item.id) numbered_.resize(item.id);
  Numbered& numbered = numbered_[item.id - 1];
  if (item.isFull) numbered = {item.agreement, nullptr};
  if (numbered.name == nullptr) numbered.name = names_.find(numbered.agreement->request.name);
  NamedHandle own = release(numbered.name.get());
  if (own == nullptr || own->pendingState().isSentById) return own;
  OwnName& name = *numbered.name;
  name.id = item.id;
  name.request = own->request();
  own->pendingState().agreedVersion = ++name.version;
  return own;
}

NamedHandle PendingTable::take(const std::string& name) { return release(names_.find(name).get()); }

NamedHandle PendingTable::release(OwnName* name) {
  if (name == nullptr || name->pending == nullptr) return nullptr;
  const size_t place = std::exchange(name->pending, nullptr)->pendingState().place;
  NamedHandle taken = std::move(pending_[place]);
  if (place + 1 < pending_.size()) {
    pending_[place] = std::move(pending_.back());
    pending_[place]->pendingState().place = place;
  }
  pending_.pop_back();
  return taken;
}

std::vector<NamedHandle> PendingTable::takeAll() {
  for (const NamedHandle& each : pending_) each->name()->pending = nullptr;
  return std::exchange(pending_, {});
}

std::vector<NamedHandle> PendingTable::takeAll(NamedKind kind) {
  std::vector<NamedHandle> taken;
  for (size_t i = pending_.size(); i-- > 0;) {
    if (pending_[i]->request().kind == kind) taken.push_back(release(pending_[i]->name().get()));
  }
  return taken;
}

void PendingTable::dropIds(const std::vector<uint32_t>& ids) {
  for (const uint32_t id : ids) {
    if (id == 0 || id > numbered_.size()) continue;
    const Numbered dropped = std::exchange(numbered_[id - 1], {});
    if (dropped.name == nullptr || dropped.name->id != id) continue;
    dropped.name->id = 0;
    ++dropped.name->version;
  }
}

}  // namespace agspeed::comm::named

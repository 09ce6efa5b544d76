// SPDX-License-Identifier: Apache-2.0
#include "comm/named/coordinator/waiting_table.h"

#include <algorithm>
#include <utility>

namespace agspeed::comm::coordinator {

Entry* WaitingTable::find(uint32_t id, const std::string& name) const {
  if (id != 0) return contains(id) ? byId_[id - 1].get() : nullptr;
  const auto found = byName_.find(name);
  return found == byName_.end() ? nullptr : found->second.get();
}

Entry& WaitingTable::add(uint32_t id, const std::string& name, EntryHandle entry) {
  ++numEntries_;
  if (id == 0) return *(byName_[name] = std::move(entry));
  if (id > byId_.size()) byId_.resize(id);
  return *(byId_[id - 1] = std::move(entry));
}

EntryHandle WaitingTable::take(uint32_t id, const std::string& name) {
  --numEntries_;
  if (id != 0) return std::move(byId_[id - 1]);
  return std::move(byName_.extract(name).mapped());
}

std::vector<EntryHandle> WaitingTable::takeIf(const std::function<bool(const Entry&)>& predicate) {
  std::vector<EntryHandle> taken;
  const auto takeIfWanted = [&](EntryHandle& entry) {
    if (entry != nullptr && predicate(*entry)) taken.push_back(std::move(entry));
  };
  for (auto& [name, entry] : byName_) takeIfWanted(entry);
  std::erase_if(byName_, [](const auto& each) { return each.second == nullptr; });
  for (EntryHandle& entry : byId_) takeIfWanted(entry);
  numEntries_ -= taken.size();
  std::sort(taken.begin(), taken.end(),
            [](const EntryHandle& left, const EntryHandle& right) { return left->order < right->order; });
  return taken;
}

void WaitingTable::forgetId(uint32_t id, const std::string& name) {
  if (!contains(id)) return;
  byId_[id - 1]->id = 0;
  byName_[name] = std::move(byId_[id - 1]);
}

void WaitingTable::forEach(const std::function<void(const Entry&)>& visit) const {
  for (const auto& [name, entry] : byName_) visit(*entry);
  for (const EntryHandle& entry : byId_) {
    if (entry != nullptr) visit(*entry);
  }
}

}  // namespace agspeed::comm::coordinator

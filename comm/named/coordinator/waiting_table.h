// SPDX-License-Identifier: Apache-2.0
// WaitingTable: keeps the operations that some ranks have submitted and others have not. It finds an operation by its
// id, or by its name if the name has no id.
//
// Threading: one thread at a time. In all functions, `id` 0 means that the entry is found by its name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "comm/named/coordinator/entry.h"

namespace agspeed::comm::coordinator {

class WaitingTable {
 public:
  size_t size() const { return numEntries_; }
  /// Returns whether an entry is kept under the id.
  bool contains(uint32_t id) const { return id <= byId_.size() && byId_[id - 1] != nullptr; }
  /// Returns the entry of the id or name, or null.
  Entry* find(uint32_t id, const std::string& name) const;
  /// Adds an entry and returns it. Requires: the table has no entry of this id or name.
  Entry& add(uint32_t id, const std::string& name, EntryHandle entry);
  /// Removes and returns the entry of the id or name. Requires: there is one.
  EntryHandle take(uint32_t id, const std::string& name);
  /// Removes the entries for which `predicate` returns true, and returns them in the order in which they were made.
  std::vector<EntryHandle> takeIf(const std::function<bool(const Entry&)>& predicate);
  /// If there is an entry of this id, the table finds it by `name` from now on, as if its requests had been sent in
  /// full.
  void forgetId(uint32_t id, const std::string& name);
  void forEach(const std::function<void(const Entry&)>& visit) const;

 private:
  std::vector<EntryHandle> byId_;  ///< byId_[id - 1]: the entry of the id; null if none waits
  std::unordered_map<std::string, EntryHandle> byName_;
  size_t numEntries_ = 0;
};

}  // namespace agspeed::comm::coordinator

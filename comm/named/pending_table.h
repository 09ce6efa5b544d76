// SPDX-License-Identifier: Apache-2.0
// PendingTable: this rank's operations that wait for a response, and the names that it sends as ids.
//
// An id stands for a name, for this rank's request under it, and for the agreement of all ranks. A repeated operation
// is found by its id or its handle, without a lookup by name.
//
// Threading: on the engine's driver. Ownership: keeps pending operations, and names that have an id.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/named/named_operation.h"
#include "comm/named/start_queue.h"

namespace agspeed::comm {

class PendingTable {
 public:
  /// `names` must outlive the table.
  explicit PendingTable(StartQueue& names) : names_(names) {}

  bool isEmpty() const { return pending_.empty(); }
  /// Records an operation whose request is being sent to the coordinator. Returns: the id to send; 0: send it in full.
  uint32_t add(const NamedHandle& operation);

  /// Whether agreementOf() exists for the item.
  bool knows(const Response::Item& item) const;
  /// The agreement of the ranks on the item; null if the item's id has never come with one.
  AgreementHandle agreementOf(const Response::Item& item) const;
  /// Removes and returns the operation that a response has come for; null if this rank has started none. Stores the
  /// agreement and id of the response. Requires: knows() the item.
  NamedHandle take(const Response::Item& item);
  /// The pending operation of this name, or null.
  NamedHandle take(const std::string& name);
  /// Removes and returns all pending operations, or all of a kind.
  std::vector<NamedHandle> takeAll();
  std::vector<NamedHandle> takeAll(NamedKind kind);
  /// Forgets these ids.
  void dropIds(const std::vector<uint32_t>& ids);

 private:
  struct Numbered {
    AgreementHandle agreement;
    OwnNameHandle name;  ///< null if this rank has not used it
  };

  NamedHandle release(OwnName* name);

  StartQueue& names_;
  std::vector<NamedHandle> pending_;  ///< place_ is their index
  std::vector<Numbered> numbered_;    ///< by id - 1
};

}  // namespace agspeed::comm

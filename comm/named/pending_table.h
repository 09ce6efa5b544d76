// SPDX-License-Identifier: Apache-2.0
// PendingTable: keeps this rank's operations that wait for a response of the coordinator, and the names for which this
// rank sends ids.
//
// The coordinator gives ids to names that repeat. An id stands for a name, for this rank's request under the name, and
// for the agreement of all ranks (request.h). A repeated operation is found by its id or its handle, without a lookup
// by name.
//
// Threading: on the engine's driver. Ownership: keeps pending operations, and names that have an id.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/named/named_operation.h"
#include "comm/named/start_queue.h"

namespace agspeed::comm::named {

class PendingTable {
 public:
  /// `names` must outlive the table.
  explicit PendingTable(StartQueue& names) : names_(names) {}

  bool isEmpty() const { return pending_.empty(); }
  /// Returns the operations that wait for a response, in an unspecified order.
  const std::vector<NamedHandle>& operations() const { return pending_; }
  /// Adds an operation whose request is being sent to the coordinator. Returns the id to send instead of the request,
  /// or 0 if the request must be sent in full.
  uint32_t add(const NamedHandle& operation);

  /// Whether agreementOf() returns an agreement for the item.
  bool knows(const Response::Item& item) const;
  /// Returns the agreement of the ranks on the item, or null if no response has brought an agreement for the item's id.
  AgreementHandle agreementOf(const Response::Item& item) const;
  /// Removes and returns the pending operation of a response's item, or returns null if this rank has not started one.
  /// Stores the id and agreement of the item. Requires: knows(item).
  NamedHandle take(const Response::Item& item);
  /// Removes and returns the pending operation of this name, or returns null if there is none.
  NamedHandle take(const std::string& name);
  /// takeAll() removes and returns all pending operations, takeAll(kind) only the operations of this kind.
  std::vector<NamedHandle> takeAll();
  std::vector<NamedHandle> takeAll(NamedKind kind);
  /// Removes these ids, which the coordinator has evicted.
  void dropIds(const std::vector<uint32_t>& ids);

 private:
  /// The agreement and the name that belong to an id.
  struct Numbered {
    AgreementHandle agreement;
    OwnNameHandle name;  ///< null if this rank has not used the name
  };

  /// Removes and returns the pending operation of the name, or returns null if there is none.
  NamedHandle release(OwnName* name);

  StartQueue& names_;
  std::vector<NamedHandle> pending_;  ///< an operation's index here is its PendingState::place
  std::vector<Numbered> numbered_;    ///< numbered_[id - 1] belongs to `id`
};

}  // namespace agspeed::comm::named

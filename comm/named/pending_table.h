// SPDX-License-Identifier: Apache-2.0
// PendingTable: what this rank has told its coordinator, as long as no response has come, and what it says by number.
//
// A number stands for a name, for what this rank means by it, and for what all ranks agreed on. An operation that comes
// again is found by its number or by itself, not by its name.
//
// Threading: on the engine's driver. Ownership: keeps pending operations, and names that have a number.
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
  /// The coordinator is told of it now. Returns: by which number; 0: in full.
  uint32_t add(const NamedHandle& operation);

  /// Whether there is an agreementOf() it.
  bool knows(const Response::Item& item) const;
  /// What the ranks have agreed on; null for a number that has never come with it.
  AgreementHandle agreementOf(const Response::Item& item) const;
  /// The operation that a response has come for, or null where this rank has started none; remembers what the response
  /// says of its name. Requires: knows() the item.
  NamedHandle take(const Response::Item& item);
  /// The pending operation of this name, or null.
  NamedHandle take(const std::string& name);
  /// All that are pending, or those of a kind.
  std::vector<NamedHandle> takeAll();
  std::vector<NamedHandle> takeAll(NamedKind kind);
  /// These numbers stand for nothing any more.
  void dropIds(const std::vector<uint32_t>& ids);

 private:
  struct Numbered {
    AgreementHandle agreement;
    OwnNameHandle name;  ///< null where this rank has not used it
  };

  NamedHandle release(OwnName* name);

  StartQueue& names_;
  std::vector<NamedHandle> pending_;  ///< each knows its place
  std::vector<Numbered> numbered_;    ///< by number - 1
};

}  // namespace agspeed::comm

// SPDX-License-Identifier: Apache-2.0
// What a caller wants done under a name, and the handle of it.
//
// A handle may be started again once it is done (NamedGroup::startAll()): a request that comes every step is then made
// once, compared with what the ranks agreed on once, and its memory is used again.
//
// Threading: as Operation; a call is changed by who prepared it, and only while it is not under way. Ownership: shared.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "comm/engine/call.h"
#include "comm/engine/operation.h"
#include "comm/named/request.h"

namespace agspeed::comm {

/// What a caller wants done under a name. The bytes stay in place until the operation is done.
struct NamedCall {
  Request request;
  /// Makes the outputs of kinds whose sizes depend on other ranks, once their rows are known: rows[tensor]. Called on
  /// the driver.
  std::function<StatusOr<BufferList>(const Dimensions& rows)> allocate = nullptr;
  /// Where the inputs come after the call: says when they are there.
  Readiness readiness = nullptr;
  BufferList inputs = {};   ///< one per shape, of its size; empty for barrier and join
  BufferList outputs = {};  ///< the same; may be the inputs. Empty where there is `allocate`
};

struct OwnName;

/// A named operation.
class NamedOperation final : public Operation {
 public:
  NamedOperation(Engine& engine, NamedCall wanted) : Operation(engine), call(std::move(wanted)) {}

  const Request& request() const { return call.request; }
  size_t numTensors() const { return call.inputs.size(); }
  /// Other memory for the next start, of the same sizes. Requires: it is done, or has never been started.
  void setBuffers(size_t at, std::span<std::byte> input, std::span<std::byte> output) {
    call.inputs[at] = input;
    call.outputs[at] = output;
  }

  /// Of an all-to-all: the rows received from each rank. Requires: isDone().
  const Dimensions& receivedRows() const { return receivedRows_; }
  /// Of a join: the rank of the group that joined last. Requires: isDone().
  int lastJoined() const { return lastJoined_; }
  /// Whether it failed because ranks called operations of different kinds by its name. Requires: isDone().
  bool areKindsDifferent() const { return areKindsDifferent_; }

 private:
  friend class NamedGroup;
  friend class PendingTable;
  friend class ResponseRunner;
  friend class StartQueue;

  NamedCall call;
  std::shared_ptr<OwnName> name_;  ///< from the first start on
  size_t place_ = 0;               ///< among what is pending
  uint64_t agreedVersion_ = 0;     ///< of the name, when the ranks last agreed on this request; 0: never
  bool isSaidById_ = false;        ///< the coordinator was told an id instead of the request
  Dimensions receivedRows_;
  int lastJoined_ = -1;
  bool areKindsDifferent_ = false;
};

using NamedHandle = std::shared_ptr<NamedOperation>;

/// A name as this rank uses it. Ownership: shared by operations under it and, where it has an id, the driver's table.
struct OwnName {
  // Guarded by the StartQueue's lock.
  bool isUnderWay = false;
  const OwnName* follower = nullptr;  ///< whose start followed closely the last time, to be compared with; null: none

  // Of the driver. What each operation looks at stands together: thousands of names take turns in a cache.
  uint32_t id = 0;                    ///< by which the coordinator knows `request`; 0: it knows none
  uint64_t version = 0;               ///< counts changes of both
  NamedOperation* pending = nullptr;  ///< the coordinator has been told, and has yet to respond
  Request request;                    ///< what this rank means by the id
};

using OwnNameHandle = std::shared_ptr<OwnName>;

}  // namespace agspeed::comm

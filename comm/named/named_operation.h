// SPDX-License-Identifier: Apache-2.0
// A caller's operation under a name, and its handle.
//
// A handle may be started again once it is done (NamedGroup::startAll()). A request that repeats every step is then
// made and compared with the ranks' agreement only once, and its memory is reused.
//
// Threading: see Operation. Only the thread that prepared a call changes it, and only while it is not in flight.
// Ownership: shared.
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

/// An operation that a caller wants to run under a name. The bytes stay in place until it is done.
struct NamedCall {
  Request request;
  /// Allocates the outputs if their sizes depend on other ranks. Called on the driver once the rows are known:
  /// rows[tensor].
  std::function<StatusOr<BufferList>(const Dimensions& rows)> allocate = nullptr;
  /// Set if the inputs become valid only after the call: returns whether they are there.
  Readiness readiness = nullptr;
  BufferList inputs = {};   ///< one per shape, of that shape's size; empty for barrier and join
  BufferList outputs = {};  ///< the same; may be the inputs. Empty if `allocate` is set
};

struct OwnName;

/// A named operation.
class NamedOperation final : public Operation {
 public:
  NamedOperation(Engine& engine, NamedCall wanted) : Operation(engine), call(std::move(wanted)) {}

  const Request& request() const { return call.request; }
  size_t numTensors() const { return call.inputs.size(); }
  /// Sets other memory of the same sizes for the next start. Requires: it is done, or has never been started.
  void setBuffers(size_t at, std::span<std::byte> input, std::span<std::byte> output) {
    call.inputs[at] = input;
    call.outputs[at] = output;
  }

  /// For an all-to-all: the rows received from each rank. Requires: isDone().
  const Dimensions& receivedRows() const { return receivedRows_; }
  /// For a join: the rank of the group that joined last. Requires: isDone().
  int lastJoined() const { return lastJoined_; }
  /// Whether it failed because ranks called operations of different kinds under its name. Requires: isDone().
  bool areKindsDifferent() const { return areKindsDifferent_; }

 private:
  friend class NamedGroup;
  friend class PendingTable;
  friend class ResponseRunner;
  friend class StartQueue;

  NamedCall call;
  std::shared_ptr<OwnName> name_;  ///< set at the first start
  size_t place_ = 0;               ///< index among pending operations
  uint64_t agreedVersion_ = 0;     ///< version of the name when the ranks last agreed on this request; 0: never
  bool isSaidById_ = false;        ///< the coordinator got an id instead of the request
  Dimensions receivedRows_;
  int lastJoined_ = -1;
  bool areKindsDifferent_ = false;
};

using NamedHandle = std::shared_ptr<NamedOperation>;

/// A name in use at this rank. Ownership: shared by the operations under it and, if it has an id, by the driver's
/// table.
struct OwnName {
  // Guarded by the StartQueue's lock.
  bool isUnderWay = false;
  const OwnName* follower = nullptr;  ///< the name that was started closely after this one the last time, for
                                      ///< comparison only; null: none

  // Used by the driver alone. Fields that every operation reads are adjacent, because thousands of names share the
  // cache.
  uint32_t id = 0;                    ///< the coordinator's id for `request`; 0: it has none
  uint64_t version = 0;               ///< counts changes of both
  NamedOperation* pending = nullptr;  ///< the operation whose request was sent and has no response yet
  Request request;                    ///< the request that the id stands for at this rank
};

using OwnNameHandle = std::shared_ptr<OwnName>;

}  // namespace agspeed::comm

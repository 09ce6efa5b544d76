// SPDX-License-Identifier: Apache-2.0
// NamedOperation: an operation that a caller runs under a name, and its handle.
//
// Once an operation is done, NamedGroup::startAll() can start it again by its handle. Training steps repeat the same
// requests. With a handle, a request is built only once, is compared with the agreement of the ranks only once, and its
// memory is reused.
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

namespace agspeed::comm::named {

/// An operation that a caller wants to run under a name. The caller keeps all buffers in place until the operation is
/// done.
struct NamedCall {
  Request request;
  /// Allocates the outputs if their sizes depend on other ranks. The driver calls it once these sizes are known:
  /// rows[tensor] is the number of rows of an output.
  std::function<StatusOr<engine::BufferList>(const Dimensions& rows)> allocate = nullptr;
  /// Returns whether the inputs are ready. Null means that they are ready at the start. A caller sets it, for example,
  /// if a copy from a device is still writing the inputs.
  engine::Readiness readiness = nullptr;
  engine::BufferList inputs = {};   ///< one per shape, with the size of the shape; empty for barrier and join
  engine::BufferList outputs = {};  ///< one per shape, may be the inputs; empty if `allocate` is set
};

struct OwnName;
using OwnNameHandle = std::shared_ptr<OwnName>;

/// A named operation.
class NamedOperation final : public engine::Operation {
 public:
  NamedOperation(engine::Engine& engine, NamedCall wanted) : engine::Operation(engine), call_(std::move(wanted)) {}

  const Request& request() const { return call_.request; }
  size_t numTensors() const { return call_.inputs.size(); }
  /// Sets the memory of the tensor at index `at` for the next start; its size must not change. Requires: the operation
  /// is done, or has never been started.
  void setBuffers(size_t at, std::span<std::byte> input, std::span<std::byte> output) {
    call_.inputs[at] = input;
    call_.outputs[at] = output;
  }

  /// For an all-to-all: returns how many rows came from each rank. Requires: isDone().
  const Dimensions& receivedRows() const { return receivedRows_; }
  /// For a join: returns the rank of the group that joined last. Requires: isDone().
  int lastJoined() const { return lastJoined_; }
  /// Whether the operation failed because ranks called operations of different kinds under its name. Requires:
  /// isDone().
  bool areKindsDifferent() const { return areKindsDifferent_; }

  // Only the operation's NamedGroup uses the functions below, and only between the start and the end of the operation.

  /// The data that PendingTable keeps in each operation.
  struct PendingState {
    size_t place = 0;            ///< index of the operation in PendingTable::pending_
    uint64_t agreedVersion = 0;  ///< OwnName::version when the ranks last agreed on this request; 0: never
    bool isSentById = false;     ///< this rank has sent the request's id instead of the request
  };
  PendingState& pendingState() { return pendingState_; }

  const NamedCall& call() const { return call_; }
  /// Returns the name, or null before the first start.
  const OwnNameHandle& name() const { return name_; }
  void setName(OwnNameHandle name) { name_ = std::move(name); }
  /// Clears the results of the previous run.
  void clearResults() {
    receivedRows_.clear();
    lastJoined_ = -1;
    areKindsDifferent_ = false;
  }
  void setReceivedRows(Dimensions rows) { receivedRows_ = std::move(rows); }
  void setLastJoined(int rank) { lastJoined_ = rank; }
  void setKindsDifferent(bool areDifferent) { areKindsDifferent_ = areDifferent; }
  /// Makes the outputs with NamedCall::allocate, and returns its error.
  Status allocateOutputs(const Dimensions& rows) {
    AG_ASSIGN_OR_RETURN(call_.outputs, call_.allocate(rows));
    return {};
  }

 private:
  NamedCall call_;
  OwnNameHandle name_;
  PendingState pendingState_;
  Dimensions receivedRows_;
  int lastJoined_ = -1;
  bool areKindsDifferent_ = false;
};

using NamedHandle = std::shared_ptr<NamedOperation>;

/// A name in use at this rank. Ownership: all operations with this name share it. If the name has an id, the
/// PendingTable shares it, too.
struct OwnName {
  // The StartQueue's lock guards these two members.
  bool isInFlight = false;  ///< an operation with this name has started and is not done
  /// The name that started within StartQueue::kFollow after this name the last time, or null. That name may have been
  /// destroyed since. So only compare this pointer, and never use the object.
  const OwnName* follower = nullptr;

  // Only the driver uses the members below. Members that every operation reads are adjacent, because thousands of names
  // compete for the processor's cache.
  uint32_t id = 0;                    ///< the coordinator's id for `request`; 0: none
  uint64_t version = 0;               ///< counts changes of `id` and `request`
  NamedOperation* pending = nullptr;  ///< the operation that waits for its response, or null
  Request request;                    ///< this rank's request for which `id` stands
};

}  // namespace agspeed::comm::named

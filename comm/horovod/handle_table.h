// SPDX-License-Identifier: Apache-2.0
// HandleTable: keeps operations in flight, each under a number. Horovod's asynchronous calls return this number
// (handle).
//
// Thread-safety: all functions, from any thread. Ownership: keeps an operation until wait() has taken it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

#include "comm/horovod/tensor_group.h"

namespace agspeed::comm::horovod {

class HandleTable {
 public:
  using Tensors = TensorGroup::Tensors;

  struct Result {
    Tensors outputs;
    bool isList = false;  ///< the `isList` that was passed to start()
    std::vector<int64_t> receivedRows;
    int lastJoined = -1;
  };

  /// Starts an operation by TensorGroup::start(), and returns its handle, which is above 0. Tensors of several types
  /// become one operation per type, whose name ends with the type. If the sizes of outputs depend on the other ranks,
  /// pass no `outputs`; they are then allocated. `isList`: the caller of Horovod's function passed a list of tensors,
  /// and so gets a list.
  int64_t start(TensorGroup& group, Request request, Tensors inputs, Tensors outputs, bool isList);
  /// Sets the group for calls of startAgain() that pass none; null: no group.
  void use(std::shared_ptr<TensorGroup> group);
  /// The result of startAgain().
  struct Again {
    int64_t handle = 0;                   ///< 0: the operation was not started; pass it to start()
    std::shared_ptr<TensorGroup> toKick;  ///< not null: the caller must call its kick() (NamedGroup::startQuietly())
  };
  /// Starts an all-reduce of one tensor under a name that repeats every step, at less cost than start(). The caller may
  /// hold locks. Returns handle 0 if it cannot handle the operation, or if the group refuses it; pass the operation to
  /// start() then. Throws if this process was forked, or if the tensors cannot be bound, for example because memory
  /// runs out. In these cases the operation has not started. `group`: null means the group of use().
  Again startAgain(const std::shared_ptr<TensorGroup>& group, std::string_view name, PersistentReduction::Kind kind,
                   const at::Tensor& input, const at::Tensor& output);

  /// Returns whether wait() would return at once, or nothing if the handle belongs to no operation.
  std::optional<bool> poll(int64_t handle);
  /// The result of takeReduced().
  struct Reduced {
    at::Tensor output;
    /// The reduction, or null. It may hold the last reference to the world, whose destructor waits for its threads.
    /// These threads may wait for locks of the caller, so release the reduction outside the locks.
    std::shared_ptr<PersistentReduction> last;
  };
  /// Removes an operation that startAgain() has started and that has succeeded, and returns its output. Returns nothing
  /// for all other handles; call wait() for these.
  std::optional<Reduced> takeReduced(int64_t handle);
  /// Removes the operation, waits for it, and returns its result. Returns nothing if the handle belongs to no
  /// operation. Throws as TensorWork::wait().
  std::optional<Result> wait(int64_t handle);

 private:
  /// The tensors of one type.
  struct Part {
    std::unique_ptr<TensorWork> work;
    std::vector<size_t> places;  ///< indices of these tensors in the call; empty: all tensors, in their order
  };
  /// An operation that start() has started.
  struct Started {
    std::vector<Part> parts;
    size_t numTensors = 0;
    bool isList = false;
  };
  /// An operation in flight. `started` is set if start() has started it, `reduction` if startAgain() has; neither is
  /// set in a free slot.
  struct InFlight {
    bool isEmpty() const { return started == nullptr && reduction == nullptr; }

    std::shared_ptr<Started> started;
    std::shared_ptr<PersistentReduction> reduction;
    uint64_t use = 0;  ///< which call of use() set the group that keeps the reduction; 0: another group keeps it
  };
  struct Slot {
    int64_t handle = 0;  ///< handle of `pending`
    InFlight pending = {};
  };

  /// The next four functions require mutex_. reserve() makes a free slot, so that a following add() cannot run out of
  /// memory.
  void reserve();
  int64_t add(InFlight pending);
  /// Returns the slot of the handle, or null if the handle belongs to no operation.
  Slot* find(int64_t handle);
  /// Removes and returns the slot's operation.
  InFlight take(Slot& slot);
  /// Both functions wait for an operation and return its result.
  static at::Tensor finish(PersistentReduction& reduction);
  static Result finish(Started& started);

  std::mutex mutex_;
  std::shared_ptr<TensorGroup> group_;  ///< the group of the last use()
  uint64_t numUses_ = 1;                ///< number of calls of use(), plus 1
  std::vector<Slot> slots_;             ///< a handle's slot is at index (handle - 1) % kMaxSlots
  std::vector<size_t> free_;
};

}  // namespace agspeed::comm::horovod

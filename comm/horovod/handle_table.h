// SPDX-License-Identifier: Apache-2.0
// HandleTable: operations in flight by number, as Horovod's asynchronous calls return them.
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

namespace agspeed::comm {

class HandleTable {
 public:
  using Tensors = TensorGroup::Tensors;

  struct Result {
    Tensors outputs;
    bool isList = false;  ///< the value passed to start()
    std::vector<int64_t> receivedRows;
    int lastJoined = -1;
  };

  /// See TensorGroup::start(). Tensors of several types become one operation per type, whose name ends with the type.
  /// Empty `outputs` are allocated if their sizes depend on the other ranks. Returns: a number above 0.
  int64_t start(TensorGroup& group, Request request, Tensors inputs, Tensors outputs, bool isList);
  /// Sets the group of calls that pass none; null: none.
  void use(std::shared_ptr<TensorGroup> group);
  struct Again {
    int64_t handle = 0;                   ///< 0: startAgain() does not handle this operation
    std::shared_ptr<TensorGroup> toKick;  ///< the caller has to call kick() on it, see NamedGroup::startQuietly();
                                          ///< null: no kick is due
  };
  /// Starts an all-reduce of one tensor under a name that repeats every step, at less cost. May be called under the
  /// caller's locks. If it fails or does not handle the operation, it returns no handle; pass the operation to start()
  /// then. `group`: null for the group of use().
  Again startAgain(const std::shared_ptr<TensorGroup>& group, std::string_view name, PersistentReduction::Kind kind,
                   const at::Tensor& input, const at::Tensor& output);

  /// Whether wait() would return at once; nothing if the number belongs to no operation.
  std::optional<bool> poll(int64_t handle);
  struct Reduced {
    at::Tensor output;
    /// Not null: may hold the last reference to the world, whose threads may wait for locks of the caller. Release it
    /// outside these locks.
    std::shared_ptr<PersistentReduction> last;
  };
  /// Removes a startAgain() that has succeeded, and returns its output. Returns nothing for all other handles; call
  /// wait() for them.
  std::optional<Reduced> takeReduced(int64_t handle);
  /// Removes the operation and waits for it; returns nothing if the number belongs to no operation. Throws as
  /// TensorWork::wait().
  std::optional<Result> wait(int64_t handle);

 private:
  struct Part {
    std::unique_ptr<TensorWork> work;
    std::vector<size_t> places;  ///< indices of its tensors in the call; empty: all, in their order
  };
  struct Started {
    std::vector<Part> parts;
    size_t numTensors = 0;
    bool isList = false;
  };
  /// An operation in flight: one of both pointers is set, or none.
  struct UnderWay {
    bool isEmpty() const { return started == nullptr && reduction == nullptr; }

    std::shared_ptr<Started> started;
    std::shared_ptr<PersistentReduction> reduction;
    uint64_t use = 0;  ///< if the group of use() keeps the reduction: number of that use(); else 0
  };
  struct Slot {
    int64_t handle = 0;  ///< of `pending`
    UnderWay pending = {};
  };

  /// These require mutex_. Call reserve() before add(), so that add() cannot fail.
  void reserve();
  int64_t add(UnderWay pending);
  /// Null if the number belongs to no operation.
  Slot* find(int64_t handle);
  UnderWay take(Slot& slot);
  static at::Tensor finish(PersistentReduction& reduction);
  static Result finish(Started& started);

  std::mutex mutex_;
  std::shared_ptr<TensorGroup> group_;  ///< of use()
  uint64_t numUses_ = 1;                ///< counts calls of use()
  std::vector<Slot> slots_;             ///< a handle's slot is at index (handle - 1) % kMaxSlots
  std::vector<size_t> free_;
};

}  // namespace agspeed::comm

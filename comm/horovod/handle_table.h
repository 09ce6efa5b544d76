// SPDX-License-Identifier: Apache-2.0
// HandleTable: operations under way by number, as Horovod's asynchronous calls give them out.
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
    bool isList = false;  ///< as start() was told
    std::vector<int64_t> receivedRows;
    int lastJoined = -1;
  };

  /// As TensorGroup::start(); tensors of several types go as an operation for each type, under a name with the type's.
  /// Without `outputs` those are made whose sizes depend on the other ranks. Returns: a number above 0.
  int64_t start(TensorGroup& group, Request request, Tensors inputs, Tensors outputs, bool isList);
  /// The group of calls that name none, from now on; null: none.
  void use(std::shared_ptr<TensorGroup> group);
  struct Again {
    int64_t handle = 0;                   ///< 0: it is nothing for startAgain()
    std::shared_ptr<TensorGroup> toKick;  ///< as of NamedGroup::startQuietly(); null: no kick is due
  };
  /// The all-reduce of one tensor whose name comes again, at less cost and under the caller's locks. What fails, and
  /// what else it is nothing for, is to be given to start(). `group`: null for that of use().
  Again startAgain(const std::shared_ptr<TensorGroup>& group, std::string_view name, PersistentReduction::Kind kind,
                   const at::Tensor& input, const at::Tensor& output);

  /// Whether wait() would return at once; nothing for a number that stands for no operation.
  std::optional<bool> poll(int64_t handle);
  struct Reduced {
    at::Tensor output;
    /// Not null: may be the last to keep the world, whose threads may wait for locks of the caller's.
    std::shared_ptr<PersistentReduction> last;
  };
  /// The output of a startAgain() that has succeeded, which is taken out; nothing of all else, for which there is
  /// wait().
  std::optional<Reduced> takeReduced(int64_t handle);
  /// Takes the operation out, and waits for it; nothing as above. Throws as TensorWork::wait().
  std::optional<Result> wait(int64_t handle);

 private:
  struct Part {
    std::unique_ptr<TensorWork> work;
    std::vector<size_t> places;  ///< of its tensors among those of the call; empty: all, in their order
  };
  struct Started {
    std::vector<Part> parts;
    size_t numTensors = 0;
    bool isList = false;
  };
  /// One of both, or none.
  struct UnderWay {
    bool isEmpty() const { return started == nullptr && reduction == nullptr; }

    std::shared_ptr<Started> started;
    std::shared_ptr<PersistentReduction> reduction;
    uint64_t use = 0;  ///< of the reduction: the number of the use() whose group keeps it; 0: another group does
  };
  struct Slot {
    int64_t handle = 0;  ///< of `pending`
    UnderWay pending = {};
  };

  /// These require: mutex_. add() comes behind a reserve(), and does not fail.
  void reserve();
  int64_t add(UnderWay pending);
  /// Null where it stands for no operation.
  Slot* find(int64_t handle);
  UnderWay take(Slot& slot);
  static at::Tensor finish(PersistentReduction& reduction);
  static Result finish(Started& started);

  std::mutex mutex_;
  std::shared_ptr<TensorGroup> group_;  ///< of use()
  uint64_t numUses_ = 1;                ///< counts calls of use()
  std::vector<Slot> slots_;             ///< a handle's is that of its remainder
  std::vector<size_t> free_;
};

}  // namespace agspeed::comm

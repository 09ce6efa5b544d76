// SPDX-License-Identifier: Apache-2.0
// HandleTable: operations under way by number, as Horovod's asynchronous calls give them out.
//
// Thread-safety: all functions, from any thread. Ownership: keeps an operation until wait() has taken it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
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

  /// Whether wait() would return at once; nothing for a number that stands for no operation.
  std::optional<bool> poll(int64_t handle);
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

  std::mutex mutex_;
  int64_t lastHandle_ = 0;
  std::unordered_map<int64_t, std::shared_ptr<Started>> pending_;
};

}  // namespace agspeed::comm

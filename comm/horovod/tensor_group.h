// SPDX-License-Identifier: Apache-2.0
// TensorGroup: a process set of Horovod's kind: named operations on torch's tensors.
//
// The global one joins the world of torch's default group where that is one of ours, else it makes a world of its own
// through the store it is given. Everything here throws ValueError for wrong arguments and DistBackendError for what
// failed.
//
// Threading: as NamedGroup; nothing here takes Python's lock, callers from Python release it. Ownership: a group keeps
// its world.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "comm/api.h"
#include "comm/horovod/tensor_work.h"

namespace agspeed::comm {

struct TensorGroupOptions {
  size_t fusionBytes = size_t{32} << 20;
  size_t cacheCapacity = 1024;
  double stallWarningSeconds = 60, stallShutdownSeconds = 0;  ///< 0: never
  double timeoutSeconds = 1800;                               ///< of an operation that all ranks have started
};

class TensorGroup {
 public:
  using Tensors = std::vector<at::Tensor>;

  /// All ranks of the job. Blocks until they can be found.
  static std::shared_ptr<TensorGroup> create(const c10::intrusive_ptr<::c10d::Store>& store, int rank, int size,
                                             TensorGroupOptions options);
  /// All ranks of this group, the global one, call it in the same order; null at those that are not in `ranks`.
  std::shared_ptr<TensorGroup> createPart(std::vector<int> ranks);

  int rank() const { return group_->rank(); }
  int size() const { return group_->size(); }

  /// Starts the operation of `request`, whose dtype, shapes and device are those of the tensors. `outputs` are written
  /// where their sizes are known before (may be the inputs), else empty.
  std::unique_ptr<TensorWork> start(Request request, Tensors inputs, Tensors outputs);
  /// As NamedGroup.
  void shutdown() { group_->shutdown(); }

 private:
  TensorGroup(std::shared_ptr<World> world, TensorGroupOptions options, std::string prefix, std::vector<int> members);

  const std::shared_ptr<World> world_;
  const TensorGroupOptions options_;
  const std::string prefix_;  ///< of this group's keys in the world's store
  uint64_t numParts_ = 0;
  std::unique_ptr<NamedGroup> group_;  ///< ends before its world
};

}  // namespace agspeed::comm

// SPDX-License-Identifier: Apache-2.0
// TensorGroup: a process set of Horovod's kind: named operations on torch's tensors.
//
// The global one joins the world of torch's default group where that is one of ours, else it makes a world of its own
// through the store it is given. Everything here throws ValueError for wrong arguments, among them a name that is under
// way, and DistBackendError for what failed.
//
// Threading: as NamedGroup; nothing here takes Python's lock, callers from Python release it. Ownership: a group keeps
// its world.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "comm/api.h"
#include "comm/horovod/persistent_reduction.h"
#include "comm/horovod/tensor_work.h"

namespace agspeed::comm {

struct TensorGroupOptions {
  FusionPlan plan = {};
  size_t cacheCapacity = 1024;
  double stallWarningSeconds = 60, stallShutdownSeconds = 0;  ///< 0: never
  double timeoutSeconds = 1800;                               ///< of an operation that all ranks have started
};

class TensorGroup {
 public:
  using Tensors = std::vector<at::Tensor>;
  using Span = PersistentReduction::Tensors;

  /// All ranks of the job. Blocks until they can be found.
  static std::shared_ptr<TensorGroup> create(const c10::intrusive_ptr<::c10d::Store>& store, int rank, int size,
                                             TensorGroupOptions options);
  /// Leaves the group in place in a forked process, where it is the parent's.
  ~TensorGroup();
  /// All ranks of this group, the global one, call it in the same order; null at those that are not in `ranks`.
  std::shared_ptr<TensorGroup> createPart(std::vector<int> ranks);

  int rank() const { return group_->rank(); }
  int size() const { return group_->size(); }

  /// Starts the operation of `request`, whose dtype, shapes and device are those of the tensors. `outputs` are written
  /// where their sizes are known before (may be the inputs), else empty. Without a name it gets one by counting, equal
  /// at ranks that make the same calls without names.
  std::unique_ptr<TensorWork> start(Request request, Tensors inputs, Tensors outputs);
  /// A reduction on its own.
  std::unique_ptr<PersistentReduction> prepare(Request request) {
    return std::make_unique<PersistentReduction>(world_, std::move(request));
  }
  void bind(PersistentReduction& reduction, Span inputs, Span outputs);
  /// As NamedGroup.
  StatusOr<bool> startQuietly(PersistentReduction& reduction) { return group_->startQuietly(reduction.operation()); }
  void kick() { group_->kick(); }
  /// Throws where one is refused; the others are started.
  void startAll(std::span<PersistentReduction* const> reductions);
  /// The reduction that comes again under this name, for the caller alone until its release(); null where somebody
  /// else has it, or there are as many as names may have numbers. By one thread at a time. It costs least for a name
  /// that comes behind the same as the last time.
  std::shared_ptr<PersistentReduction> acquire(std::string_view name, PersistentReduction::Kind kind);
  /// Names that are given by counting begin again: after a join, until which ranks have made different numbers of
  /// calls.
  void restartNames();

  /// As NamedGroup; nothing in a forked process.
  void shutdown();
  /// As NamedGroup.
  void setPlan(FusionPlan plan) { group_->setPlan(plan); }
  NamedStats stats() { return group_->stats(); }
  /// Writes a trace from now on, where this rank is the coordinator's; elsewhere nothing. Ends one that is being
  /// written.
  void startTimeline(const std::string& path, bool marksCycles);
  void stopTimeline();

 private:
  TensorGroup(std::shared_ptr<World> world, TensorGroupOptions options, std::string prefix, std::vector<int> members);

  const std::shared_ptr<World> world_;
  const TensorGroupOptions options_;
  const std::string prefix_;  ///< of this group's keys in the world's store
  uint64_t numParts_ = 0;
  std::mutex mutex_;
  std::map<NamedKind, uint64_t> numUnnamed_;  ///< guarded by mutex_
  struct TextHash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  /// A reduction that comes again.
  struct Recurring {
    std::shared_ptr<PersistentReduction> reduction;
    Recurring* next = nullptr;  ///< that was acquired behind it the last time
  };
  Recurring* findRecurring(std::string_view name);
  /// Makes room for another where there is none; returns whether there is.
  bool hasRoom();

  // Of acquire().
  std::unordered_map<std::string, Recurring, TextHash, std::equal_to<>> recurring_;
  Recurring* lastAcquired_ = nullptr;  ///< null: nothing is known of it
  /// Whether one was released since room was looked for.
  const std::shared_ptr<std::atomic<bool>> released_ = std::make_shared<std::atomic<bool>>(false);

  std::shared_ptr<Timeline> timeline_;
  std::unique_ptr<NamedGroup> group_;  ///< ends before its world
};

}  // namespace agspeed::comm

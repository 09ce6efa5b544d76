// SPDX-License-Identifier: Apache-2.0
// TensorGroup: a process set in Horovod's sense: named operations on torch's tensors.
//
// The global group joins the world of torch's default group if that is an agspeed group. Otherwise it makes a world of
// its own through the given store. All functions throw ValueError for wrong arguments, including a name that is in
// flight, and DistBackendError for failures.
//
// Threading: see NamedGroup. Nothing here takes Python's lock; callers from Python release it. Ownership: a group keeps
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
  double timeoutSeconds = 1800;                               ///< for an operation that all ranks have started
};

class TensorGroup {
 public:
  using Tensors = std::vector<at::Tensor>;
  using Span = PersistentReduction::Tensors;

  /// All ranks of the job call it. Blocks until they can be found.
  static std::shared_ptr<TensorGroup> create(const c10::intrusive_ptr<::c10d::Store>& store, int rank, int size,
                                             TensorGroupOptions options);
  /// Leaks the group in a forked process, because it belongs to the parent.
  ~TensorGroup();
  /// All ranks of this group, which is the global one, call it in the same order. Null at ranks that are not in
  /// `ranks`.
  std::shared_ptr<TensorGroup> createPart(std::vector<int> ranks);

  int rank() const { return group_->rank(); }
  int size() const { return group_->size(); }

  /// Starts the operation of `request`; its dtype, shapes and device come from the tensors. `outputs` receive the
  /// results if their sizes are known in advance (they may be the inputs), else it is empty. An operation without a
  /// name gets one from a counter, which is equal at ranks that make the same calls without names.
  std::unique_ptr<TensorWork> start(Request request, Tensors inputs, Tensors outputs);
  /// A reduction outside the table of acquire().
  std::unique_ptr<PersistentReduction> prepare(Request request) {
    return std::make_unique<PersistentReduction>(world_, std::move(request));
  }
  void bind(PersistentReduction& reduction, Span inputs, Span outputs);
  /// See NamedGroup.
  StatusOr<bool> startQuietly(PersistentReduction& reduction) { return group_->startQuietly(reduction.operation()); }
  void kick() { group_->kick(); }
  /// Throws if a reduction is refused; the others are started.
  void startAll(std::span<PersistentReduction* const> reductions);
  /// The repeated reduction of this name, for the caller alone until its release(). Null if another caller has it, or
  /// if there already are cacheCapacity of them. One thread at a time. Cheapest if names come in the same order as the
  /// last time.
  std::shared_ptr<PersistentReduction> acquire(std::string_view name, PersistentReduction::Kind kind);
  /// Restarts the counter of names. Called after a join, because ranks have made different numbers of calls until then.
  void restartNames();

  /// See NamedGroup; does nothing in a forked process.
  void shutdown();
  /// See NamedGroup.
  void setPlan(FusionPlan plan) { group_->setPlan(plan); }
  NamedStats stats() { return group_->stats(); }
  /// Writes a trace from now on if this rank is the coordinator's; else does nothing. Ends a trace that is being
  /// written.
  void startTimeline(const std::string& path, bool marksCycles);
  void stopTimeline();

 private:
  TensorGroup(std::shared_ptr<World> world, TensorGroupOptions options, std::string prefix, std::vector<int> members);

  const std::shared_ptr<World> world_;
  const TensorGroupOptions options_;
  const std::string prefix_;  ///< prefix of this group's keys in the world's store
  uint64_t numParts_ = 0;
  std::mutex mutex_;
  std::map<NamedKind, uint64_t> numUnnamed_;  ///< guarded by mutex_
  struct TextHash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  /// A reduction that repeats.
  struct Recurring {
    std::shared_ptr<PersistentReduction> reduction;
    Recurring* next = nullptr;  ///< the one that was acquired after it the last time
  };
  Recurring* findRecurring(std::string_view name);
  /// Makes room for another one if there is none; returns whether there is room.
  bool hasRoom();

  // Used by acquire().
  std::unordered_map<std::string, Recurring, TextHash, std::equal_to<>> recurring_;
  Recurring* lastAcquired_ = nullptr;  ///< null: unknown
  /// Whether a reduction was released since room was last searched.
  const std::shared_ptr<std::atomic<bool>> released_ = std::make_shared<std::atomic<bool>>(false);

  std::shared_ptr<Timeline> timeline_;
  std::unique_ptr<NamedGroup> group_;  ///< declared last, so that it ends before its world
};

}  // namespace agspeed::comm

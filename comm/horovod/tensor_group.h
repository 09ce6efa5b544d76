// SPDX-License-Identifier: Apache-2.0
// TensorGroup: runs named operations on torch's tensors, in one of Horovod's process sets (a group of ranks).
//
// The global group joins the world of torch's default group if that is an agspeed group. Otherwise it makes a world of
// its own through the given store. All functions throw ValueError for wrong arguments, including a name that is in
// flight, and DistBackendError for failures.
//
// Threading: see NamedGroup. No function takes Python's lock; callers from Python release it before a call. Ownership:
// a group keeps its world.
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

namespace agspeed::comm::horovod {

struct TensorGroupOptions {
  FusionPlan plan = {};
  size_t cacheCapacity = 1024;
  double stallWarningSeconds = 60, stallShutdownSeconds = 0;  ///< 0: no warning, no shutdown
  double timeoutSeconds = 1800;                               ///< limit of an operation that all ranks have started
};

class TensorGroup {
 public:
  using Tensors = std::vector<at::Tensor>;
  using Span = PersistentReduction::Tensors;

  /// Makes the global group. All ranks of the job call it. Blocks until all ranks have been found.
  static std::shared_ptr<TensorGroup> create(const c10::intrusive_ptr<::c10d::Store>& store, int rank, int size,
                                             TensorGroupOptions options);
  /// Leaks the group in a forked process, because it belongs to the parent.
  ~TensorGroup();
  /// Makes a group of the ranks in `ranks`. All ranks of this group, which must be the global one, make these calls in
  /// the same order. Returns null at ranks that are not in `ranks`.
  std::shared_ptr<TensorGroup> createPart(std::vector<int> ranks);

  int rank() const { return group_->rank(); }
  int size() const { return group_->size(); }

  /// Starts the operation of `request`; its dtype, shapes and device come from the tensors. `outputs` receive the
  /// results, and may be the inputs. If the sizes of results depend on other ranks, `outputs` is empty. An operation
  /// without a name gets one from a counter. The counters are equal at ranks that make the same calls without names.
  std::unique_ptr<TensorWork> start(Request request, Tensors inputs, Tensors outputs);
  /// Throws if start() would refuse this name now.
  void checkName(const std::string& name);
  /// Makes a reduction that is not in the table of acquire().
  std::unique_ptr<PersistentReduction> prepare(Request request) {
    return std::make_unique<PersistentReduction>(world_, std::move(request));
  }
  /// Sets the tensors that later starts of the reduction read (`inputs`) and write (`outputs`) in this group.
  void bind(PersistentReduction& reduction, Span inputs, Span outputs);
  /// See NamedGroup::startQuietly() and kick().
  StatusOr<bool> startQuietly(PersistentReduction& reduction) { return group_->startQuietly(reduction.operation()); }
  void kick() { group_->kick(); }
  /// Starts all these reductions. If one of them is refused, starts the others and throws the reason.
  void startAll(std::span<PersistentReduction* const> reductions);
  /// Takes the repeated reduction of this name for the caller alone, until the reduction's release(). Makes the
  /// reduction if there is none. Returns null if another caller has taken it, or if the table is full (cacheCapacity).
  /// One thread at a time. The call is cheapest if names come in the same order as the last time.
  std::shared_ptr<PersistentReduction> acquire(std::string_view name, PersistentReduction::Kind kind);
  /// Resets the counter for operations without a name. Call it after a join, because ranks may have made different
  /// numbers of calls before.
  void restartNames();

  /// Calls NamedGroup::shutdown(). Does nothing in a forked process.
  void shutdown();
  /// See NamedGroup.
  void setPlan(FusionPlan plan) { group_->setPlan(plan); }
  NamedStats stats() { return group_->stats(); }
  /// Starts to write a trace to a file at the coordinator's rank; does nothing at other ranks. Stops a trace that is
  /// being written.
  void startTimeline(const std::string& path, bool marksCycles);
  void stopTimeline();

 private:
  TensorGroup(std::shared_ptr<World> world, TensorGroupOptions options, std::string prefix, std::vector<int> members);

  const std::shared_ptr<World> world_;
  const TensorGroupOptions options_;
  const std::string prefix_;  ///< prefix of this group's keys in the world's store
  uint64_t numParts_ = 0;
  std::mutex mutex_;
  std::map<NamedKind, uint64_t> numUnnamed_;  ///< number of operations without a name; guarded by mutex_
  struct TextHash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  /// A repeated reduction in the table of acquire().
  struct Recurring {
    std::shared_ptr<PersistentReduction> reduction;
    Recurring* next = nullptr;  ///< the reduction that was acquired after this one the last time; null: unknown
  };
  /// Returns the repeated reduction of this name, or null.
  Recurring* findRecurring(std::string_view name);
  /// Returns true if the table has room for another reduction. If it is full, first removes reductions that no caller
  /// uses.
  bool hasRoom();

  // Used by acquire().
  std::unordered_map<std::string, Recurring, TextHash, std::equal_to<>> recurring_;
  Recurring* lastAcquired_ = nullptr;  ///< the reduction that was acquired last; null: unknown
  /// Set if a reduction was released since hasRoom() last tried to remove reductions.
  const std::shared_ptr<std::atomic<bool>> released_ = std::make_shared<std::atomic<bool>>(false);

  std::shared_ptr<Timeline> timeline_;
  std::unique_ptr<NamedGroup> group_;  ///< declared last, so that it is destroyed before the world
};

}  // namespace agspeed::comm::horovod

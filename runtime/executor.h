// SPDX-License-Identifier: Apache-2.0
// Executor: runs one entry of an Executable any number of times. It does not use torch: tensors are behind
// tensor_backend.h.
//
// Loading flattens the Program into steps with resolved kernel addresses. A call leases a Call (frame, arena, pointer
// table); nothing is allocated after a few calls have run. It binds the symbols from the inputs, finds the
// ResolvedProgram of these sizes and runs the steps in order:
//
//   Executor::Lease lease = executor.lease();
//   ... put the inputs into lease.frame() ...
//   AG_RETURN_IF_ERROR(executor.run(lease));      to the end of the first stage, the only one of most Programs
//   ... take its outputs from lease.frame() ...
//   AG_RETURN_IF_ERROR(executor.resume(lease));   and so on, stage by stage
//
// Programs on a device differ in two points. Their arena is memory of the tensor library, allocated for each call.
// Kernels are queued on the stream that is current when the first stage begins; later stages must run on it, too.
//
// While a profiler of the tensor library records, each launch is an event with the kernel's name. Its time includes the
// slices on other threads; on a device it is the time of queueing.
//
// Thread-safety: all const functions may run on several threads at once; a Lease is used by one thread at a time. The
// Executor must outlive its leases. A lease may be dropped before its last stage. Errors of run: kInvalidArgument if
// the inputs do not fit the Program (nothing has run), otherwise an operator's error, with the operator and its origin
// in the message; outputs are then undefined.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/executable.h"
#include "runtime/memory/arena_pool.h"
#include "runtime/tensor_backend.h"

namespace agspeed::runtime {

class Executor {
 public:
  class Lease;

  /// Requires: the entry's Program passed verify(). Errors: see resolve() and the backend's prepare().
  static StatusOr<std::unique_ptr<Executor>> create(std::shared_ptr<const Executable> executable,
                                                    const std::string& entry, std::shared_ptr<TensorBackend> backend,
                                                    std::shared_ptr<ArenaPool> arenas);
  ~Executor();

  Lease lease() const;
  Status run(Lease& lease) const;
  /// Runs the next stage. Requires: run() and each resume() so far succeeded, and a stage is left.
  Status resume(Lease& lease) const;
  const Program& program() const { return program_; }
  /// The sizes of the last run() on this lease.
  static const ResolvedProgram& resolved(const Lease& lease);

 private:
  struct Call;
  struct Step;
  using Resolved = std::shared_ptr<const ResolvedProgram>;

  Executor(std::shared_ptr<const Executable> executable, const Program& program, std::shared_ptr<TensorBackend> backend,
           std::shared_ptr<ArenaPool> arenas);
  void flatten();
  StatusOr<Resolved> resolveFor(std::vector<int64_t> symbols) const;
  StatusOr<Resolved> findResolved(const std::vector<int64_t>& symbols) const;
  Status chooseResolved(Call& call) const;
  Status begin(Call& call) const;
  Status runSteps(Call& call) const;
  Status takeArena(Call& call) const;
  Status launch(const Step& step, Call& call) const;
  Status launchProfiled(const Step& step, Call& call) const;
  Status allocateFresh(const Step& step, Call& call) const;
  void giveBack(std::unique_ptr<Call> call) const;

  const std::shared_ptr<const Executable> executable_;
  const Program& program_;
  const std::shared_ptr<TensorBackend> backend_;
  const std::shared_ptr<ArenaPool> arenas_;
  std::vector<Step> steps_;
  std::vector<ValueId> operands_;  ///< of all steps
  std::vector<ValueId> fresh_;     ///< values to allocate before their first use, of all steps
  Resolved staticResolved_;        ///< set when the Program has no symbols

  static constexpr size_t kIdleCalls = 4;
  static constexpr size_t kRecentSizes = 16;
  mutable std::array<std::atomic<Call*>, kIdleCalls> idle_{};
  mutable std::mutex recentMutex_;
  mutable std::vector<Resolved> recent_;  ///< most recent first; guarded by recentMutex_
};

/// One call in flight: returns its buffers to the Executor when destroyed.
class Executor::Lease {
 public:
  Lease(Lease&&) noexcept;
  Lease& operator=(Lease&&) = delete;
  ~Lease();
  TensorFrame& frame() const;

 private:
  friend class Executor;
  Lease(const Executor& executor, std::unique_ptr<Call> call);
  const Executor* executor_;
  std::unique_ptr<Call> call_;
};

}  // namespace agspeed::runtime

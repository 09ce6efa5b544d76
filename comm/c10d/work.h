// SPDX-License-Identifier: Apache-2.0
// Work: torch's handle of an operation of a process group. It holds one or more of our operations, and tensors whose
// results may have to be copied back at the end.
//
// wait() drives the engine on the calling thread, so a short operation involves no other thread. A future is completed
// on the engine's thread for callbacks. The first thread that sees the end copies results back, once. If they are on a
// device, wait() makes the current stream wait for the copies, and a future the streams of its users. Thread-safety:
// all functions, from any thread, also while the group ends. A work that is dropped keeps its tensors until it is done,
// and its results are still copied back.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <functional>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "comm/api.h"
#include "comm/c10d/buffers.h"

namespace agspeed::comm {

/// Describes a work.
struct WorkFacts {
  int rank = 0;
  ::c10d::OpType type = ::c10d::OpType::UNKNOWN;
  uint64_t sequence = 0;
  std::string_view name;             ///< "all_reduce", of static lifetime
  std::vector<at::Tensor> results;   ///< values of the future
  std::shared_ptr<FlightRing> ring;  ///< records failures
  std::weak_ptr<World> world;        ///< its engine drives the operations, which end before it
};

class Work final : public ::c10d::Work {
 public:
  using Handle = c10::intrusive_ptr<Work>;

  /// `endEvent` may be null. It is called when the work is done, before a caller can see that it is done.
  Work(WorkFacts facts, std::vector<OperationHandle> operations, Buffers buffers,
       std::function<void()> endEvent = nullptr);
  /// One work for all of `parts`, of which there is at least one, with the facts of the first. Each part may still be
  /// waited for.
  Work(const std::vector<Handle>& parts, std::function<void()> endEvent);
  ~Work() override;

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  /// For a completed receive: the rank that sent the message.
  int sourceRank() const override;
  std::vector<at::Tensor> result() override { return facts_.results; }
  void synchronize() override { wait(); }
  /// Throws DistBackendError if an operation failed or `timeout` passed first.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void abort() override;
  /// The future's value is the list of results.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override { return facts_.sequence; }

 private:
  /// Outlives the work if its operations do.
  struct State {
    const std::shared_ptr<FlightRing> ring;
    const std::weak_ptr<World> world;
    std::vector<OperationHandle> operations;         ///< also of `parts`
    std::vector<std::shared_ptr<Staging>> stagings;  ///< also of `parts`
    std::vector<std::shared_ptr<State>> parts;
    Buffers buffers;
    std::function<void()> endEvent;
    std::mutex mutex;
    bool isFinished = false;
    Status status;

    bool areDone() const;
    /// Copies results back at the first call. Requires: areDone().
    const Status& finish();
    Status copyBack();
    /// finish() for a caller that learns the outcome: also records a failure.
    const Status& observe();
    /// Makes the current streams wait until the results are on their devices. Requires: finish().
    void join() const;
  };

  /// Lets `endEvent` run when the operations end, without a caller that polls or waits.
  void endWith(std::function<void()> endEvent);
  /// Calls `action` on a thread for callbacks when the last operation is done, or here at once if the world no longer
  /// exists.
  static void whenDone(const std::shared_ptr<State>& state, std::function<void()> action);
  static void whenDoneFrom(size_t next, const std::shared_ptr<State>& state, std::function<void()> action);

  WorkFacts facts_;
  std::shared_ptr<State> state_;
  bool isPart_ = false;  ///< part of another work, which calls finish() for it
  std::mutex futureMutex_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace agspeed::comm

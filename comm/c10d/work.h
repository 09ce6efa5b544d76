// SPDX-License-Identifier: Apache-2.0
// Work: torch's handle of something that a process group does. One or more operations of ours, and tensors whose
// results may have to be copied back when they are done.
//
// wait() drives the engine on the calling thread, so that a short operation involves no other thread; a future is
// completed on the engine's thread for callbacks. Results are copied back once, by whoever comes first; where they are
// on a device, wait() lets the current stream wait for that, and a future its users' streams. Thread-safety: all
// functions, from any thread, also while the group ends. A work that is dropped keeps its tensors until it is done, and
// its results are copied back all the same.
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

/// What a work is about.
struct WorkFacts {
  int rank = 0;
  ::c10d::OpType type = ::c10d::OpType::UNKNOWN;
  uint64_t sequence = 0;
  std::string_view name;             ///< "all_reduce", of static lifetime
  std::vector<at::Tensor> results;   ///< what the future yields
  std::shared_ptr<FlightRing> ring;  ///< told of failures
  std::weak_ptr<World> world;        ///< whose engine moves the operations; all of them end before it
};

class Work final : public ::c10d::Work {
 public:
  using Handle = c10::intrusive_ptr<Work>;

  /// `endEvent`, unless it is null, is called when the work is done: before anybody sees that it is.
  Work(WorkFacts facts, std::vector<OperationHandle> operations, Buffers buffers,
       std::function<void()> endEvent = nullptr);
  /// Everything that `parts`, of which there is one, do, with the facts of the first. Each may be waited for as well.
  Work(const std::vector<Handle>& parts, std::function<void()> endEvent);
  ~Work() override;

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  /// Of a receive that is completed: whose message it was.
  int sourceRank() const override;
  std::vector<at::Tensor> result() override { return facts_.results; }
  void synchronize() override { wait(); }
  /// Throws DistBackendError when an operation failed or `timeout` passed first.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void abort() override;
  /// Yields the list of results.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override { return facts_.sequence; }

 private:
  /// Outlives the work where operations do.
  struct State {
    const std::shared_ptr<FlightRing> ring;
    const std::weak_ptr<World> world;
    std::vector<OperationHandle> operations;         ///< also of the parts
    std::vector<std::shared_ptr<Staging>> stagings;  ///< also of the parts
    std::vector<std::shared_ptr<State>> parts;
    Buffers buffers;
    std::function<void()> endEvent;
    std::mutex mutex;
    bool isFinished = false;
    Status status;

    bool areDone() const;
    /// Requires: areDone(). Copies results back at the first call.
    const Status& finish();
    Status copyBack();
    /// As finish(), for somebody who sees by it how the operations ended: a failure is recorded.
    const Status& observe();
    /// Requires: finish(). The current streams go on when the results are on their devices.
    void join() const;
  };

  /// From here on the event ends with the operations, not when somebody looks.
  void endWith(std::function<void()> endEvent);
  /// Calls `action` on a thread for callbacks when the last operation is done; here and now where the world is gone.
  static void whenDone(const std::shared_ptr<State>& state, std::function<void()> action);
  static void whenDoneFrom(size_t next, const std::shared_ptr<State>& state, std::function<void()> action);

  WorkFacts facts_;
  std::shared_ptr<State> state_;
  bool isPart_ = false;  ///< of another work, which sees to the end of this one
  std::mutex futureMutex_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace agspeed::comm

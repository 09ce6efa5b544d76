// SPDX-License-Identifier: Apache-2.0
// Work: torch's handle of an operation of a process group. It holds one or more operations of the communicator, and
// copies results to torch's tensors at the end.
//
// wait() drives the engine on the calling thread, so a short operation involves no other thread. A future is completed
// on a thread for callbacks. The first thread that finds the operations done copies the results back, once. If the
// results are on a device, wait() makes the current stream wait for the copies. A future makes the streams of its users
// wait for the copies. Thread-safety: all functions, from any thread, also while the group ends. If a caller drops a
// work, its tensors stay allocated until it is done, and its results are still copied back.
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

namespace agspeed::comm::c10d {

/// Describes a work.
struct WorkFacts {
  int rank = 0;
  ::c10d::OpType type = ::c10d::OpType::UNKNOWN;
  uint64_t sequence = 0;
  std::string_view name;             ///< such as "all_reduce"; the text has static lifetime
  std::vector<at::Tensor> results;   ///< tensors that the future returns
  std::shared_ptr<FlightRing> ring;  ///< records failures of the work
  std::weak_ptr<World> world;        ///< the world whose engine drives the operations
};

class Work final : public ::c10d::Work {
 public:
  using Handle = c10::intrusive_ptr<Work>;

  /// Makes the work of `operations`. `endEvent` is called when the work is done, before a caller can find it done; it
  /// may be null.
  Work(WorkFacts facts, std::vector<OperationHandle> operations, Buffers buffers,
       std::function<void()> endEvent = nullptr);
  /// Makes one work for all `parts`, with the type, sequence and name of the first part. Requires: at least one part.
  /// Callers may also wait for single parts.
  Work(const std::vector<Handle>& parts, std::function<void()> endEvent);
  ~Work() override;

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  /// For a completed receive: returns the rank that has sent the message. Otherwise returns -1.
  int sourceRank() const override;
  std::vector<at::Tensor> result() override { return facts_.results; }
  void synchronize() override { wait(); }
  /// Waits until the work is done. Throws DistBackendError if an operation has failed, or if `timeout` passes first.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void abort() override;
  /// Returns a future whose value is the list of results.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override { return facts_.sequence; }

 private:
  /// The state that outlives the work if its operations are not done.
  struct State {
    const std::shared_ptr<FlightRing> ring;
    const std::weak_ptr<World> world;
    std::vector<OperationHandle> operations;         ///< includes the operations of `parts`
    std::vector<std::shared_ptr<Staging>> stagings;  ///< includes the stagings of `parts`
    std::vector<std::shared_ptr<State>> parts;
    Buffers buffers;
    std::function<void()> endEvent;
    std::mutex mutex;
    bool isFinished = false;
    Status status;

    /// Whether all operations are done.
    bool areDone() const;
    /// Copies results back and calls `endEvent`, at the first call only. Returns the work's status. Requires:
    /// areDone().
    const Status& finish();
    /// Copies results back. Returns an error instead of throwing.
    Status copyBack();
    /// Calls finish() for a caller that gets the status. If the work has failed, also writes the flight record.
    const Status& observe();
    /// Makes the current streams wait until the results are on their devices. Requires: finish().
    void join() const;
  };

  /// Sets `endEvent` to be called when the operations are done, even if no caller polls or waits.
  void endWith(std::function<void()> endEvent);
  /// Calls `action` on a thread for callbacks when all operations are done. If the world no longer exists, calls it at
  /// once on this thread.
  static void whenDone(const std::shared_ptr<State>& state, std::function<void()> action);
  /// Implements whenDone() for the operations from index `next` on.
  static void whenDoneFrom(size_t next, const std::shared_ptr<State>& state, std::function<void()> action);

  WorkFacts facts_;
  std::shared_ptr<State> state_;
  bool isPart_ = false;  ///< part of another work, which calls finish() for it
  std::mutex futureMutex_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace agspeed::comm::c10d

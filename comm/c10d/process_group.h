// SPDX-License-Identifier: Apache-2.0
// ProcessGroup: the backend "agspeed" of torch.distributed. Follows c10d::Backend of torch 2.11.
//
// Tensors are checked, turned into runs of bytes (calls.h) and handed to the group's communicator; what comes back is a
// Work. Argument errors use the words of torch's Gloo backend, so that code which looks for them goes on working.
//
// Threading: as Communicator: operations are started in the same order at all ranks. Nothing here takes Python's lock;
// callers from Python release it. Ownership: a group keeps its world; works outlive their group.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/api.h"
#include "comm/c10d/calls.h"
#include "comm/c10d/coalescing.h"
#include "comm/c10d/work.h"

namespace agspeed::comm {

class ProcessGroup final : public ::c10d::Backend {
 public:
  using TorchWork = c10::intrusive_ptr<::c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  /// Torch's own, as a type that Python can copy, as torch does to split a group.
  struct Options final : Backend::Options {
    using Backend::Options::Options;
    explicit Options(const Backend::Options& other) : Backend::Options(other) {}
  };

  /// A group for torch: part of the default group's world where that group is one of ours, else with a world of its
  /// own. Throws DistBackendError.
  static c10::intrusive_ptr<ProcessGroup> create(const ::c10d::DistributedBackendOptions& options);
  ~ProcessGroup() override;

  const std::string getBackendName() const override { return "agspeed"; }
  /// A copy: torch splits a group with the options it reads here, after writing the part's name and timeout into them.
  c10::intrusive_ptr<Backend::Options> getBackendOptions() override { return c10::make_intrusive<Options>(*options_); }
  bool supportsSplitting() const override { return true; }

  TorchWork broadcast(Tensors& tensors, const ::c10d::BroadcastOptions& options) override;
  TorchWork allreduce(Tensors& tensors, const ::c10d::AllreduceOptions& options) override;
  TorchWork allreduce_coalesced(Tensors& tensors, const ::c10d::AllreduceCoalescedOptions& options) override;
  TorchWork reduce(Tensors& tensors, const ::c10d::ReduceOptions& options) override;
  TorchWork allgather(std::vector<Tensors>& outputs, Tensors& inputs, const ::c10d::AllgatherOptions& options) override;
  TorchWork _allgather_base(at::Tensor& output, at::Tensor& input, const ::c10d::AllgatherOptions& options) override;
  TorchWork allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                const ::c10d::AllgatherOptions& options) override;
  TorchWork allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                            const ::c10d::AllgatherOptions& options) override;
  TorchWork gather(std::vector<Tensors>& outputs, Tensors& inputs, const ::c10d::GatherOptions& options) override;
  TorchWork scatter(Tensors& outputs, std::vector<Tensors>& inputs, const ::c10d::ScatterOptions& options) override;
  TorchWork reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                           const ::c10d::ReduceScatterOptions& options) override;
  TorchWork _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                 const ::c10d::ReduceScatterOptions& options) override;
  TorchWork reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                            const ::c10d::ReduceScatterOptions& options) override;
  TorchWork alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& outputSplits,
                          std::vector<int64_t>& inputSplits, const ::c10d::AllToAllOptions& options) override;
  TorchWork alltoall(Tensors& outputs, Tensors& inputs, const ::c10d::AllToAllOptions& options) override;
  TorchWork send(Tensors& tensors, int rank, int tag) override;
  TorchWork recv(Tensors& tensors, int rank, int tag) override;
  TorchWork recvAnysource(Tensors& tensors, int tag) override;
  TorchWork barrier(const ::c10d::BarrierOptions& options) override;
  /// Through the store; throws DistBackendError that names who did not come (monitored_barrier.h).
  void monitoredBarrier(const ::c10d::BarrierOptions& options, bool waitAllRanks) override;

  /// endCoalescing() gives all that this thread has started since startCoalescing() as one work; each operation has a
  /// work of its own, too. supportsCoalescing() is false, as Gloo's is: torch would begin a scope for each batch of
  /// messages, and leave it open where it refuses one of them.
  void startCoalescing() override { coalescing_.start(); }
  TorchWork endCoalescing() override { return together(coalescing_.end()); }

  /// All ranks of the group split it, into one part after another. Null at ranks that are not in `ranks`.
  c10::intrusive_ptr<Backend> split(const c10::intrusive_ptr<::c10d::Store>& store, const std::vector<int>& ranks,
                                    const c10::intrusive_ptr<Backend::Options>& options) override;
  void setTimeout(std::chrono::milliseconds timeout) override { options_->timeout = timeout; }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  ::c10d::ErrorType getError() override;
  void abort() override;
  void shutdown() override;

  // --- beyond torch's interface ---

  /// Counters of the group's world (counters.h), and what its groups did last (flight_record.h).
  std::string countersJson();
  std::string flightRecordJson() { return recorder_->toJson("somebody asked"); }
  /// Runs a collective by the algorithm of this name from now on, or as the plan says where it is empty; also by one
  /// that reduces in another order than the canonical one. All ranks do it between the same two operations.
  void setAlgorithm(const std::string& collective, const std::string& algorithm);

 private:
  ProcessGroup(std::shared_ptr<World> world, uint32_t id, std::unique_ptr<Communicator> communicator,
               std::vector<int> members, c10::intrusive_ptr<Options> options);
  static c10::intrusive_ptr<ProcessGroup> join(std::shared_ptr<World> world, uint32_t id, std::vector<int> members,
                                               const std::string& name, c10::intrusive_ptr<Options> options);

  /// What a group has until shutdown(). Whoever uses it keeps it: another thread may end the group meanwhile.
  struct Membership {
    ~Membership();
    std::shared_ptr<World> world;
    std::unique_ptr<Communicator> communicator;  ///< ends before its world; left in place in a forked process
  };
  /// Null after shutdown() and in a forked process.
  std::shared_ptr<Membership> membershipIfAny() const;
  /// Throws DistBackendError where there is none.
  std::shared_ptr<Membership> membership() const;
  OperationOptions optionsOf(const Buffers& buffers, std::chrono::milliseconds timeout) const;
  /// Profilers see `inputs`.
  Work::Handle start(PreparedCall prepared, at::TensorList inputs, std::chrono::milliseconds timeout);
  Work::Handle startMessage(bool isSend, Tensors tensors, int rank, uint32_t tag);
  /// What `parts` do as one work, which calls `endEvent` when it is done.
  TorchWork together(const std::vector<Work::Handle>& parts, std::function<void()> endEvent = nullptr);
  /// `start` starts the operation of the input of this number; together they are one work, and for profilers one of
  /// this name.
  template <typename Start>
  TorchWork coalesced(const char* name, const Tensors& inputs, const Start& start);
  TorchWork sumSparse(const at::Tensor& tensor, const ::c10d::AllreduceOptions& options);
  /// Sends what is not empty of `own` to every other rank, and receives others[rank] from it.
  TorchWork exchange(const Tensors& own, const std::vector<Tensors>& others, uint32_t tag);

  const std::shared_ptr<FlightRecorder> recorder_;
  const std::shared_ptr<FlightRing> ring_;
  const uint32_t id_;               ///< of this group in its world
  const std::vector<int> members_;  ///< ranks of the world
  c10::intrusive_ptr<Options> options_;
  const Calls calls_;
  Coalescing coalescing_;
  Plan plan_;
  std::atomic<uint64_t> sequence_ = 0;
  uint64_t numSplits_ = 0;
  uint64_t numMonitoredBarriers_ = 0;
  uint32_t numSparseSums_ = 0;
  mutable std::mutex mutex_;
  std::shared_ptr<Membership> membership_;  ///< guarded by mutex_
};

}  // namespace agspeed::comm

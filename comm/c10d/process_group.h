// SPDX-License-Identifier: Apache-2.0
// ProcessGroup: the backend "agspeed" of torch.distributed. It implements torch's c10d::Backend, in every release of
// .ci/torch-versions.txt.
//
// A call checks its tensors, converts them to byte ranges (calls.h), starts an operation of the group's communicator
// and returns a Work. Argument errors use the texts of torch's Gloo backend, so code that searches for these texts
// keeps working.
//
// From torch 2.14 on, a group may get other members (membership.cpp). It is made without members then.
//
// Threading: see Communicator; all ranks start operations in the same order. Only counters and flight records may be
// read while a group is reconfigured. No function takes Python's lock; callers from Python release it before a call.
// Ownership: a group keeps its world; works outlive their group.
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

namespace agspeed::comm::c10d {

class ProcessGroup final : public ::c10d::Backend {
 public:
  using TorchWork = c10::intrusive_ptr<::c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  /// Torch's options, as a type that Python can copy. Torch copies the options when it splits a group.
  struct Options final : Backend::Options {
    using Backend::Options::Options;
    explicit Options(const Backend::Options& other) : Backend::Options(other) {}
  };

  /// Makes a group for torch. The group uses the world of the default group if that is an agspeed group; otherwise it
  /// makes a new world. Throws DistBackendError.
  static c10::intrusive_ptr<ProcessGroup> create(const ::c10d::DistributedBackendOptions& options);
  ~ProcessGroup() override;

  const std::string getBackendName() const override { return "agspeed"; }
  /// Returns a copy, because torch writes the part's name and timeout into the options before it splits a group with
  /// them.
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
  /// Runs a barrier through the store. Throws DistBackendError, which names the ranks that did not arrive
  /// (monitored_barrier.h).
  void monitoredBarrier(const ::c10d::BarrierOptions& options, bool waitAllRanks) override;

  /// endCoalescing() returns one work for all operations that this thread has started since startCoalescing(). Each
  /// operation also has a work of its own. supportsCoalescing() is false, as for Gloo. If it were true, torch would
  /// call startCoalescing() for each batch of messages. If torch then refused one of the messages, it would never call
  /// endCoalescing().
  void startCoalescing() override { coalescing_.start(); }
  TorchWork endCoalescing() override { return together(coalescing_.end()); }

  /// Makes a group of some ranks of this group. All ranks of this group make these calls in the same order. Returns
  /// null at ranks that are not in `ranks`.
  c10::intrusive_ptr<Backend> split(const c10::intrusive_ptr<::c10d::Store>& store, const std::vector<int>& ranks,
                                    const c10::intrusive_ptr<Backend::Options>& options) override;
  void setTimeout(std::chrono::milliseconds timeout) override { options_->timeout = timeout; }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  ::c10d::ErrorType getError() override;
  void abort() override;
  void shutdown() override;

#ifdef C10D_BACKEND_HAS_RECONFIGURE
  /// Whether the group was made with `enable_reconfigure`.
  bool supportsReconfigure() const override { return reconfigurable_ != nullptr; }
  /// Returns the text that names this group in this process. It stays the same. Throws DistBackendError if the group
  /// cannot be reconfigured.
  ::c10d::ReconfigureHandle get_reconfigure_handle() const override;
  /// Gives the group other members, and returns a work that is done. An ordered list of handles numbers the ranks; a
  /// set is sorted. Unfinished operations fail. Waits for the other members, for the group's timeout by default. Throws
  /// ValueError for wrong handles and for hints, and DistBackendError for a uuid that was used before; the group is as
  /// it was then. Throws DistBackendError if a member does not come; the group has no members then.
  TorchWork reconfigure(const ::c10d::ReconfigureOptions& options) override;
#endif

  // --- beyond torch's interface ---

  /// Both return JSON: the counters of the group's world (counters.h), and the last operations of all groups of this
  /// world (flight_record.h).
  std::string countersJson();
  std::string flightRecordJson();
  /// Runs a collective by the algorithm of this name from now on; empty: by the default algorithm. The algorithm may
  /// add in another order than the default, so rounding may differ. All ranks call this function between the same two
  /// operations.
  void setAlgorithm(const std::string& collective, const std::string& algorithm);

 private:
  /// The state that a group needs to get other members.
  struct Reconfigurable {
    std::shared_ptr<Store> store;
    std::string handle;
    bool isDefault = false;  ///< whether it is torch's default group
  };

  ProcessGroup(int rank, int size, c10::intrusive_ptr<Options> options);
  static c10::intrusive_ptr<ProcessGroup> join(std::shared_ptr<World> world, uint32_t id, std::vector<int> members,
                                               c10::intrusive_ptr<Options> options);
#ifdef C10D_BACKEND_HAS_RECONFIGURE
  static c10::intrusive_ptr<ProcessGroup> withoutMembers(const ::c10d::DistributedBackendOptions& options,
                                                         bool isDefault, c10::intrusive_ptr<Options> own);
  /// Throws DistBackendError if the group cannot be reconfigured.
  const Reconfigurable& reconfigurable() const;
#endif
  static std::unique_ptr<Communicator> makeCommunicator(World& world, uint32_t id, const std::vector<int>& members,
                                                        const Options& options);
  /// Takes the rank of this process in `communicator`, and begins to count operations.
  void enter(std::shared_ptr<World> world, uint32_t id, std::unique_ptr<Communicator> communicator,
             std::vector<int> members);

  /// The state of a group until shutdown() or until it gets other members. A function that uses the state holds a
  /// reference to it, because another thread may shut the group down meanwhile.
  struct Membership {
    ~Membership();
    std::shared_ptr<World> world;
    std::unique_ptr<Communicator> communicator;  ///< destroyed before its world; leaked in a forked process
  };
  /// Returns the state, or null after shutdown() and in a forked process.
  std::shared_ptr<Membership> membershipIfAny() const;
  /// Returns the state. Throws DistBackendError after shutdown() and in a forked process.
  std::shared_ptr<Membership> membership() const;
  /// Returns the options of an operation. Uses the group's timeout if `timeout` is not set.
  OperationOptions optionsOf(const Buffers& buffers, std::chrono::milliseconds timeout) const;
  /// Starts the call. Profilers show the shapes of `inputs`.
  Work::Handle start(PreparedCall prepared, at::TensorList inputs, std::chrono::milliseconds timeout);
  Work::Handle startMessage(bool isSend, Tensors tensors, int rank, uint32_t tag);
  /// Makes one work for all `parts`, which calls `endEvent` when it is done.
  TorchWork together(const std::vector<Work::Handle>& parts, std::function<void()> endEvent = nullptr);
  /// Starts an operation per input and makes one work for all of them. `start` gets the index of the input. Profilers
  /// show one event `name`.
  template <typename Start>
  TorchWork coalesced(const char* name, const Tensors& inputs, const Start& start);
  /// Starts an all-reduce of a sparse tensor (sparse_sum.h).
  TorchWork sumSparse(const at::Tensor& tensor, const ::c10d::AllreduceOptions& options);
  /// Starts to send the tensors `own` to every other rank, and to receive the tensors `others[rank]` from each rank.
  /// Skips empty tensors.
  TorchWork exchange(const Tensors& own, const std::vector<Tensors>& others, uint32_t tag);

  const c10::intrusive_ptr<Options> options_;
  std::unique_ptr<const Reconfigurable> reconfigurable_;  ///< null if the members stay
  // enter() sets the following members.
  std::shared_ptr<FlightRecorder> recorder_;  ///< guarded by mutex_
  std::shared_ptr<FlightRing> ring_;
  uint32_t id_ = 0;           ///< this group's id in its world
  std::vector<int> members_;  ///< the members' ranks in the world
  Calls calls_;
  Coalescing coalescing_;
  Plan plan_;
  std::atomic<uint64_t> sequence_ = 0;
  uint64_t numSplits_ = 0;
  uint64_t numMonitoredBarriers_ = 0;
  uint32_t numSparseSums_ = 0;
  mutable std::mutex mutex_;
  std::shared_ptr<Membership> membership_;  ///< guarded by mutex_
};

}  // namespace agspeed::comm::c10d

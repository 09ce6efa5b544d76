// SPDX-License-Identifier: Apache-2.0
// GradientExchange: reduces each gradient of an optimizer as soon as the backward has computed it.
//
// Parameters are in groups, and most groups have one parameter. A group is reduced when each of its parameters has had
// GradientOptions::numPasses backwards. This class handles hooks, names, requests and the copies of results to the
// gradients. So a training step enters Python only three times: to check the optimizer's parameters, for startMissing()
// and for wait(). Callbacks do the work that needs Python: they run the user's compressors, and convert sparse
// gradients to dense ones.
//
// For a sparse gradient the ranks gather its elements, and each rank sums the elements of all ranks. A rank without a
// gradient uses zeros instead. The zeros are dense until the rank has learned that the other ranks' gradients are
// sparse. If a gradient is sparse at some ranks and dense at others, the ranks agree on one layout and reduce again.
//
// Threading: backwards call hooks on torch's threads; one thread calls everything else. Only the callbacks take
// Python's lock. Ownership: keeps parameters and the group. Hooks do nothing after the exchange is destroyed.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/horovod/sparse_rows.h"
#include "comm/horovod/tensor_group.h"

namespace agspeed::comm::horovod {

struct GradientOptions {
  NamedReduction reduction = NamedReduction::kAverage;
  double prescale = 1, postscale = 1;
  bool isHalf = false;         ///< whether dense gradients of floats are sent as float16
  bool isOther = false;        ///< the callback `start` reduces all groups
  bool isSparseDense = false;  ///< the callback `start` reduces sparse gradients, after making them dense
  int numPasses = 1;           ///< number of backwards that one reduction covers
};

struct GradientCallbacks {
  /// Throws the error for the parameter of this number, which has had more than numPasses backwards. The parameter's
  /// hook calls it.
  std::function<void(size_t)> refuse;
  /// Reduces the group of this number, which is ready and needs Python. Hooks and startMissing() call it.
  std::function<void(size_t)> start;
  /// Returns whether the optimizer still has the parameters of this exchange. A hook calls it before the first
  /// reduction of a step. If it returns false, hooks start nothing in this step, and the owner makes another exchange.
  std::function<bool()> isCurrent;
};

class GradientExchange : public std::enable_shared_from_this<GradientExchange> {
 public:
  using Tensors = TensorGroup::Tensors;

  /// Makes an exchange, and hooks the parameters that require a gradient. `members`: for each group, the indices of its
  /// parameters; each parameter is in one group. `names`: names of the groups. Earlier groups have higher priority.
  static std::shared_ptr<GradientExchange> create(std::shared_ptr<TensorGroup> group, Tensors parameters,
                                                  const std::vector<std::vector<size_t>>& members,
                                                  std::vector<std::string> names, GradientOptions options,
                                                  GradientCallbacks callbacks);

  /// Sets GradientOptions::numPasses, and restarts the count of backwards.
  void setPasses(int numPasses);
  /// Whether a group has been started since the last wait().
  bool isUnderWay();
  /// Starts the groups that are not started yet. Uses zeros for gradients that this rank has not computed.
  void startMissing();
  /// Waits for all started groups and stores the results in the gradients. Throws if a start has failed (see
  /// TensorGroup::start()) or if waiting fails (see TensorWork::wait()). In any case, the exchange is then ready for
  /// the next step.
  void wait();

 private:
  /// A counted reference to an autograd node; its type depends on the version of torch.
  using Accumulator = decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

  struct Parameter {
    at::Tensor tensor;
    size_t group = 0;
    int numLeft = 1;  ///< number of backwards until the parameter is ready
    /// Keeps the parameter's AccumulateGrad node, which has our hook, alive; null: the parameter has no hook.
    Accumulator accumulator = nullptr;
  };
  struct Group {
    std::string name;
    std::vector<size_t> members;
    size_t numMissing = 0;  ///< number of members that are not ready
    bool isStarted = false;
    bool isReduced = false;   ///< the group was started through `reduction`
    bool isGathered = false;  ///< `work` gathers the elements of a sparse gradient
    bool isMade = false;      ///< this rank has filled in zeros for at least one of the gradients
    std::unique_ptr<PersistentReduction> reduction = nullptr;  ///< reduces dense gradients in host memory
    std::unique_ptr<TensorWork> work = nullptr;                ///< reduces all other gradients
    Tensors sent = {};                                         ///< tensors that `work` reduces
    std::optional<RowForm> form = std::nullopt;  ///< set when the sparse gradient of the only member was gathered
  };

  GradientExchange() = default;
  /// Adds our hook to the parameter's AccumulateGrad node.
  void hook(size_t at);
  /// Counts a backward of the parameter, and starts its group when the group is ready. The parameter's hook calls it.
  void accumulated(size_t at);
  /// Starts the group, or adds it to `together_` for startTogether(). Requires: mutex_, which this function releases
  /// during callbacks.
  void start(size_t at, std::unique_lock<std::mutex>& lock);
  /// Starts the reductions in `together_`.
  void startTogether();
  /// Runs the action. If it throws, keeps the exception for wait().
  template <typename Action>
  void attempt(Action action);
  /// Whether the group has one member, whose gradient is sparse and is reduced by this class, not by the callback.
  bool isSparse(const Group& group) const;
  /// Starts to gather the elements of the group's sparse gradient.
  void gather(size_t at);
  /// Agrees with the other ranks on one layout for a gradient that is sparse at some ranks and dense at others. Then
  /// reduces the gradient again. The layout is dense if any rank has a dense gradient that is not filled in.
  void agreeOnLayout(size_t at);
  Request requestOf(size_t at, NamedKind kind = NamedKind::kAllReduce) const;
  /// Fills `gradients_` with the group's gradients. Leaves it empty if the callback must reduce the group.
  void findGradients(const Group& group);
  /// Waits for the group's operation, and stores the result in the gradients.
  void finish(Group& group);
  /// Whether the group failed because its only gradient is sparse at some ranks and dense at others.
  bool needsLayoutAgreement(const Group& group) const;
  /// Prepares all groups for the next step.
  void reset();

  std::shared_ptr<TensorGroup> group_;
  GradientOptions options_;
  GradientCallbacks callbacks_;
  std::mutex mutex_;
  std::vector<Parameter> parameters_;
  std::vector<Group> groups_;
  std::vector<PersistentReduction*> together_;  ///< reductions that startTogether() starts
  Tensors gradients_;                           ///< gradients of the group that is being started
  size_t numStarted_ = 0;
  bool isOutdated_ = false;     ///< the optimizer has other parameters than this exchange
  std::exception_ptr failure_;  ///< the first exception of this step
};

}  // namespace agspeed::comm::horovod

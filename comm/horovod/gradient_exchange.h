// SPDX-License-Identifier: Apache-2.0
// GradientExchange: reduces the gradients of an optimizer, each as soon as the backward has computed it.
//
// Parameters are in groups, most of them alone in a group. A group is reduced once its members have seen as many
// backwards as one reduction covers. Hooks, names, requests and the copies back are handled here, so a training step
// enters Python only three times: to check the optimizer's parameters, for startMissing() and for wait(). Callbacks
// handle what only Python can do: they run the user's compressors, and make sparse gradients dense.
//
// For a sparse gradient the ranks gather its elements, and each rank sums all of them. A rank without a gradient makes
// zeros. They are dense until the rank knows that the gradients of other ranks are sparse. If the gradients of one name
// differ in layout, the ranks agree on one layout and reduce again.
//
// Threading: backwards call hooks on torch's threads; one thread calls everything else. Only the callbacks take
// Python's lock. Ownership: keeps parameters and the group; hooks end with the exchange.
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

namespace agspeed::comm {

struct GradientOptions {
  NamedReduction reduction = NamedReduction::kAverage;
  double prescale = 1, postscale = 1;
  bool isHalf = false;         ///< dense floats are sent as float16
  bool isOther = false;        ///< the callback handles all groups
  bool isSparseDense = false;  ///< the callback handles sparse gradients: it makes them dense
  int numPasses = 1;           ///< backwards per reduction
};

struct GradientCallbacks {
  /// Called from the hook of a parameter that has seen one backward too many; gets its number and throws.
  std::function<void(size_t)> refuse;
  /// The group of this number is ready, and the callback has to reduce it. Called from a hook or startMissing().
  std::function<void(size_t)> start;
  /// Returns whether the optimizer still has the parameters of this exchange. A hook calls it before the first
  /// reduction of a step. If it returns false, hooks start nothing in this step, and the owner makes another exchange.
  std::function<bool()> isCurrent;
};

class GradientExchange : public std::enable_shared_from_this<GradientExchange> {
 public:
  using Tensors = TensorGroup::Tensors;

  /// `members`: numbers of parameters, each in one group. `names`: names of the groups. Earlier groups have higher
  /// priority. Hooks the parameters that require a gradient.
  static std::shared_ptr<GradientExchange> create(std::shared_ptr<TensorGroup> group, Tensors parameters,
                                                  const std::vector<std::vector<size_t>>& members,
                                                  std::vector<std::string> names, GradientOptions options,
                                                  GradientCallbacks callbacks);

  void setPasses(int numPasses);
  /// Whether a group has been started since the last wait().
  bool isUnderWay();
  /// Starts the groups that are not started. Gradients that this rank has not computed are zeros.
  void startMissing();
  /// Waits for all groups. Throws if starting failed (see TensorGroup::start()) or waiting failed (see
  /// TensorWork::wait()). The next step begins anew in any case.
  void wait();

 private:
  /// A counted reference to an autograd node; its type depends on the version of torch.
  using Accumulator = decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

  struct Parameter {
    at::Tensor tensor;
    size_t group = 0;
    int numLeft = 1;  ///< backwards until it is ready
    /// Keeps the node with our hook alive; null: not hooked.
    Accumulator accumulator = nullptr;
  };
  struct Group {
    std::string name;
    std::vector<size_t> members;
    size_t numMissing = 0;  ///< members that are not ready
    bool isStarted = false;
    bool isReduced = false;                                    ///< started through `reduction`
    bool isGathered = false;                                   ///< started through `work`: gathers a sparse gradient
    bool isMade = false;                                       ///< this rank made one of its gradients from zeros
    std::unique_ptr<PersistentReduction> reduction = nullptr;  ///< for dense gradients in host memory
    std::unique_ptr<TensorWork> work = nullptr;                ///< for other gradients
    Tensors sent = {};                                         ///< tensors that `work` reduces
    std::optional<RowForm> form = std::nullopt;  ///< of its only member, after its sparse gradient was gathered
  };

  GradientExchange() = default;
  void hook(size_t at);
  void accumulated(size_t at);
  /// Starts the group, or adds it to `together_` for startTogether(). Requires: mutex_, which it releases during
  /// callbacks.
  void start(size_t at, std::unique_lock<std::mutex>& lock);
  void startTogether();
  /// Runs the action and keeps its exception for wait().
  template <typename Action>
  void attempt(Action action);
  /// Whether its only member's gradient is sparse and is reduced here, not by the callback.
  bool isSparse(const Group& group) const;
  void gather(size_t at);
  /// The ranks agree on one layout for a gradient that is sparse at some ranks only, and reduce it again.
  void settle(size_t at);
  Request requestOf(size_t at, NamedKind kind = NamedKind::kAllReduce) const;
  /// Fills `gradients_`; leaves it empty if a gradient is not dense.
  void findGradients(const Group& group);
  void finish(Group& group);
  /// Whether the group failed because its only gradient is sparse at some ranks only.
  bool isUnsettled(const Group& group) const;
  void reset();

  std::shared_ptr<TensorGroup> group_;
  GradientOptions options_;
  GradientCallbacks callbacks_;
  std::mutex mutex_;
  std::vector<Parameter> parameters_;
  std::vector<Group> groups_;
  std::vector<PersistentReduction*> together_;  ///< to be started by startTogether()
  Tensors gradients_;                           ///< of the group that is being started
  size_t numStarted_ = 0;
  bool isOutdated_ = false;     ///< the optimizer has other parameters by now
  std::exception_ptr failure_;  ///< the first exception of this step
};

}  // namespace agspeed::comm

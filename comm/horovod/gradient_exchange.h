// SPDX-License-Identifier: Apache-2.0
// GradientExchange: the gradients of an optimizer, each reduced as soon as the backward has made it.
//
// Parameters are in groups, most of them in one of their own; a group is reduced once its members have seen as many
// backwards as one reduction is for. Hooks, names, requests and the copies back are here, so that a training step
// involves Python three times: a look at the optimizer's parameters, startMissing() and wait(). A callback does what
// only Python can do: it runs compressors of the user, and makes sparse gradients dense.
//
// The ranks gather a sparse gradient: its elements travel, and each rank adds up all of them. A rank without a gradient
// makes zeros. They are dense until the rank knows that the gradients of others are sparse. Where the gradients of one
// name differ in layout, the ranks agree on one layout and reduce again.
//
// Threading: backwards call hooks on threads of torch's; the rest by one thread. Nothing here takes Python's lock but
// the callbacks. Ownership: keeps parameters and the group; hooks end with the exchange.
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
  bool isHalf = false;         ///< dense floats travel as float16
  bool isOther = false;        ///< all groups are left to the callback
  bool isSparseDense = false;  ///< sparse gradients are left to the callback, which makes them dense
  int numPasses = 1;           ///< backwards per reduction
};

struct GradientCallbacks {
  /// The parameter of this number has seen one backward too many; throws. Called from its hook.
  std::function<void(size_t)> refuse;
  /// The group of this number is ready, and is nothing for us. Called from a hook or startMissing().
  std::function<void(size_t)> start;
  /// Says whether the optimizer still has the parameters of this exchange. A hook calls it before the first reduction
  /// of a step. If the answer is no, hooks start nothing in this step, and the owner makes another exchange.
  std::function<bool()> isCurrent;
};

class GradientExchange : public std::enable_shared_from_this<GradientExchange> {
 public:
  using Tensors = TensorGroup::Tensors;

  /// `members`: numbers of parameters, each in one group; `names`: of the groups. Those first in the list have the
  /// highest priority. Hooks the parameters that require a gradient.
  static std::shared_ptr<GradientExchange> create(std::shared_ptr<TensorGroup> group, Tensors parameters,
                                                  const std::vector<std::vector<size_t>>& members,
                                                  std::vector<std::string> names, GradientOptions options,
                                                  GradientCallbacks callbacks);

  void setPasses(int numPasses);
  /// Whether a group has been started since the last wait().
  bool isUnderWay();
  /// Starts what is not: gradients that this rank has not computed are zeros.
  void startMissing();
  /// Waits for all groups. Throws what starting failed by (as TensorGroup::start()), or waiting (as
  /// TensorWork::wait()); the next step begins anew in any case.
  void wait();

 private:
  /// A counted reference to a node of autograd, whatever this torch counts by.
  using Accumulator = decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

  struct Parameter {
    at::Tensor tensor;
    size_t group = 0;
    int numLeft = 1;  ///< backwards until it is ready
    /// Has our hook as long as it lives; null: not hooked.
    Accumulator accumulator = nullptr;
  };
  struct Group {
    std::string name;
    std::vector<size_t> members;
    size_t numMissing = 0;  ///< members that are not ready
    bool isStarted = false;
    bool isReduced = false;                                    ///< started as `reduction`
    bool isGathered = false;                                   ///< started as `work`, of a sparse gradient's rows
    bool isMade = false;                                       ///< a gradient of it was made of zeros
    std::unique_ptr<PersistentReduction> reduction = nullptr;  ///< of gradients that are dense and in host memory
    std::unique_ptr<TensorWork> work = nullptr;                ///< of others
    Tensors sent = {};                                         ///< by `work`, where it reduces
    std::optional<RowForm> form = std::nullopt;  ///< of its only member, once its gradient was sparse at some rank
  };

  GradientExchange() = default;
  void hook(size_t at);
  void accumulated(size_t at);
  /// Starts the group, or leaves it to startTogether(). Requires: mutex_, which it lets go while it calls back.
  void start(size_t at, std::unique_lock<std::mutex>& lock);
  void startTogether();
  /// Keeps the action's exception for wait().
  template <typename Action>
  void attempt(Action action);
  /// Whether its only member's gradient is sparse, and for us.
  bool isSparse(const Group& group) const;
  void gather(size_t at);
  /// The ranks agree on one layout for a gradient that is sparse at some of them alone, and reduce it again.
  void settle(size_t at);
  Request requestOf(size_t at, NamedKind kind = NamedKind::kAllReduce) const;
  /// Fills `gradients_`: empty where one is not dense.
  void findGradients(const Group& group);
  void finish(Group& group);
  /// Whether the group failed because its only gradient is sparse at some ranks alone.
  bool isUnsettled(const Group& group) const;
  void reset();

  std::shared_ptr<TensorGroup> group_;
  GradientOptions options_;
  GradientCallbacks callbacks_;
  std::mutex mutex_;
  std::vector<Parameter> parameters_;
  std::vector<Group> groups_;
  std::vector<PersistentReduction*> together_;  ///< to be started
  Tensors gradients_;                           ///< of the group that is being started
  size_t numStarted_ = 0;
  bool isOutdated_ = false;     ///< the optimizer has other parameters by now
  std::exception_ptr failure_;  ///< the first of this step
};

}  // namespace agspeed::comm

// SPDX-License-Identifier: Apache-2.0
// RegionNode: the autograd node of one forward call of a Region.
//
// Its inputs are the gradients of the differentiable user outputs, its outputs the gradients of the inputs that require
// grad. Saved tensors are SavedVariables: version counters are checked, saved-tensor hooks run, an output that is saved
// makes no reference cycle, and release follows torch's rules (retain_graph, second backward).
//
// Under create_graph=True, and for tangents that are not plain tensors, the backward direction would be wrong or not
// differentiable: the node then differentiates the region's EagerFunction, for which it keeps the inputs (replay.h).
// The same stands in for a backward direction that throws what the EagerFunction may replace; where it cannot, because
// an input was modified since, the exception passes.
//
// Threading: as every torch node: apply and release_variables exclude each other, any engine thread may call them.
// Errors: exceptions, as torch's engine expects.
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/autograd/region.h"
#include "runtime/autograd/replay.h"

namespace agspeed::runtime::autograd {

/// What a tensor is now: a copy with the same strides and without history.
at::Tensor snapshot(const at::Tensor& tensor);

class RegionNode final : public torch::autograd::Node {
 public:
  using Argument = aten::Argument;

  /// Makes the node of one call: `results` are the forward direction's outputs, of which the differentiable ones get
  /// this node as their grad_fn; `randomState` is the generator's state before it, undefined when it drew nothing.
  static void record(std::shared_ptr<const Region> region, const std::vector<Argument>& inputs,
                     std::vector<Argument>& results, const at::Tensor& randomState);

  explicit RegionNode(std::shared_ptr<const Region> region) : region_(std::move(region)) {}
  torch::autograd::variable_list apply(torch::autograd::variable_list&& tangents) override;
  void release_variables() override;
  std::string name() const override { return "AgspeedRegionBackward"; }

 private:
  using Tensors = torch::autograd::variable_list;

  Tensors takeSaved();
  Tensors runBackward(Tensors&& tangents);
  std::vector<Argument> callBackward(std::vector<Argument> inputs, size_t firstTangent) const;
  Tensors differentiateEagerly(const Tensors& tangents) const;

  const std::shared_ptr<const Region> region_;
  std::vector<size_t> differentiated_;  ///< forward inputs of this node's outputs, in order
  std::vector<torch::autograd::SavedVariable> saved_;
  std::vector<int64_t> symints_;
  std::optional<Replay> replay_;  ///< empty without an EagerFunction, and after release
  bool released_ = false;
};

}  // namespace agspeed::runtime::autograd

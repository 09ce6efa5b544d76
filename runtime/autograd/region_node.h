// SPDX-License-Identifier: Apache-2.0
// RegionNode: the autograd node of one forward call of a Region.
//
// Its inputs are the gradients of the differentiable user outputs, its outputs the gradients of the inputs that require
// grad. Saved tensors are SavedVariables: version counters are checked, saved-tensor hooks run, an output that is saved
// makes no reference cycle, and release follows torch's rules (retain_graph, second backward).
//
// Under create_graph=True, and for tangents that are not plain tensors, the backward direction would be wrong or not
// differentiable: the node then recomputes the outputs with the signature's `replay` and differentiates those. For this
// it keeps the region's inputs.
//
// Threading: as every torch node: apply and release_variables exclude each other, any engine thread may call them.
// The GIL is taken for replay and by PythonCode.
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "python/csrc/region.h"

namespace agspeed::python {

/// What a tensor is now: a copy with the same strides and without history.
at::Tensor snapshot(const at::Tensor& tensor);

class RegionNode final : public torch::autograd::Node {
 public:
  using Argument = runtime::aten::Argument;

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

  /// An input with a history, kept for replay: the tensor and its grad_fn apart, so that an input modified later does
  /// not tie itself into a cycle with this node.
  struct Derived {
    torch::autograd::SavedVariable saved;
    std::shared_ptr<torch::autograd::Node> history;
  };
  /// An input kept for replay: an integer, a leaf with its version, or a Derived.
  struct KeptInput {
    std::optional<int64_t> integer;
    at::Tensor leaf;
    uint32_t version = 0;
    std::unique_ptr<Derived> derived;
  };

  void keepInput(const Argument& input);
  at::Tensor unpackInput(const KeptInput& input) const;
  std::vector<at::Tensor> takeSaved();
  Tensors runBackward(Tensors&& tangents);
  Tensors replay(Tensors&& tangents);
  Tensors callReplay(const Tensors& inputs) const;
  pybind11::tuple replayArguments(const Tensors& inputs) const;

  const std::shared_ptr<const Region> region_;
  std::vector<size_t> differentiated_;  ///< forward inputs of this node's outputs, in order
  std::vector<torch::autograd::SavedVariable> saved_;
  std::vector<int64_t> symints_;
  std::vector<KeptInput> kept_;  ///< by forward input; empty without replay
  at::Tensor randomState_;
  bool released_ = false;
};

}  // namespace agspeed::python

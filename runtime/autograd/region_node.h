// SPDX-License-Identifier: Apache-2.0
// RegionNode: the autograd nodes of one forward call of a Region, one for each stage of its backward direction.
//
//   tangents -> node of stage 0 -> gradients of stage 0
//                     | token
//               node of stage 1 -> gradients of stage 1 ...
//
// torch's engine runs a ready AccumulateGrad before any other node. So hooks, DDP's reducer and other users of
// gradients get one stage's gradients before the next stage is computed. The token carries the run (staged_run.h).
//
// Saved tensors are SavedVariables of the node whose stage uses them. Version counters are checked, saved-tensor hooks
// run, and an output that is saved makes no reference cycle. They are released by torch's rules (retain_graph, second
// backward), stage by stage.
//
// Under create_graph=True, and for tangents that are not plain tensors, the backward direction would be wrong or not
// differentiable. Stage 0 then differentiates the region's EagerFunction, for which it keeps the inputs (replay.h), and
// the later stages only hand the results over. The EagerFunction also replaces a stage that throws an error that it may
// replace; gradients that were already handed over are not handed over again. If an input was modified since, it cannot
// replace the stage, and the exception passes.
//
// Threading: as every torch node: apply and release_variables exclude each other, any engine thread may call them.
// Errors: exceptions, as torch's engine expects.
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <memory>
#include <string>
#include <vector>

#include "runtime/aten/random_state.h"
#include "runtime/aten/torch_version.h"
#include "runtime/autograd/region.h"
#include "runtime/autograd/replay.h"
#include "runtime/autograd/staged_run.h"

namespace agspeed::runtime::autograd {

/// A copy of the current values, with the same strides and without history.
at::Tensor snapshot(const at::Tensor& tensor);

class RegionNode final : public torch::autograd::Node {
 public:
  using Argument = aten::Argument;

  /// Makes the nodes of one call. `results`: the forward direction's outputs; the differentiable ones get the first
  /// node as their grad_fn. `randomState`: the generators' state before the call, undefined if it drew nothing.
  static void record(std::shared_ptr<const Region> region, const std::vector<Argument>& inputs,
                     std::vector<Argument>& results, const aten::RandomState& randomState);

  RegionNode(std::shared_ptr<const Region> region, size_t stage) : region_(std::move(region)), number_(stage) {}
  torch::autograd::variable_list apply(torch::autograd::variable_list&& inputs) override;
  void release_variables() override;
  std::string name() const override;

 private:
  using Tensors = torch::autograd::variable_list;

  static std::vector<aten::NodePointer<RegionNode>> makeChain(const std::shared_ptr<const Region>& region,
                                                              const std::vector<Argument>& inputs);
  const RegionStage& stage() const { return region_->stages()[number_]; }
  bool isLast() const { return number_ + 1 == region_->stages().size(); }
  Tensors applyFirst(Tensors&& tangents);
  Tensors applyLater(at::Tensor token);
  std::vector<Argument> takeSaved();
  void appendTangents(Tensors&& tangents, std::vector<Argument>& inputs) const;
  Tensors compute(StagedRun& run, std::vector<Argument> inputs) const;
  std::vector<Argument> resume(StagedRun& run, std::vector<Argument> inputs) const;
  Tensors differentiateEagerly(const Replay* replay, const Tensors& tangents) const;
  Tensors takeReplayed(StagedRun& run) const;

  const std::shared_ptr<const Region> region_;
  const size_t number_;  ///< number of the stage
  std::vector<torch::autograd::SavedVariable> saved_;
  std::vector<int64_t> symints_;          ///< of stage 0
  std::shared_ptr<const Replay> replay_;  ///< of stage 0; nullptr without an EagerFunction, and after release
  bool released_ = false;
};

}  // namespace agspeed::runtime::autograd

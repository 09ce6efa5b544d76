// SPDX-License-Identifier: Apache-2.0
// StagedRun: the state that the stage nodes of one Region call share while a graph task runs through them, and the
// token that carries it from node to node.
//
// The token is an empty tensor that owns the run. torch's engine keeps it in the input buffer of the next stage node,
// so a run belongs to its graph task. It ends with the last stage, with an exception, or when the graph task stops
// early because later gradients are not needed (autograd.grad). Several graph tasks may run through the same nodes at
// once.
//
// Threading: one thread at a time, as the engine runs the nodes of one graph task.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <optional>
#include <vector>

#include "runtime/autograd/region_code.h"
#include "runtime/autograd/replay.h"

namespace agspeed::runtime::autograd {

struct StagedRun {
  std::shared_ptr<const Region> region;  ///< keeps the objects that `code` refers to
  std::unique_ptr<BackwardRun> code;
  std::vector<bool> isReached;              ///< by forward input: whether its gradient is defined
  torch::autograd::variable_list tangents;  ///< kept only for `replay`
  std::shared_ptr<const Replay> replay;     ///< may replace `code`; nullptr: it may not
  /// By forward input: gradients that eager has computed instead and that are not handed over yet.
  std::optional<torch::autograd::variable_list> replayed;
};

/// An empty tensor on the device of `options` that owns `run`.
at::Tensor makeToken(std::unique_ptr<StagedRun> run, const at::TensorOptions& options);
/// The run of a token from makeToken(); the tensor still owns it. Throws c10::Error for any other tensor.
StagedRun& runOf(const at::Tensor& token);

}  // namespace agspeed::runtime::autograd

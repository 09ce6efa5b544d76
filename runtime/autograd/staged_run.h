// SPDX-License-Identifier: Apache-2.0
// StagedRun: what the stage nodes of one Region call share while one graph task runs through them, and the token that
// carries it from node to node.
//
// The token is an empty tensor that owns the run: torch's engine keeps it in the input buffer of the next stage node,
// so a run belongs to its graph task. It ends with the last stage, with an exception, or when the graph task stops
// early because nobody asked for later gradients (autograd.grad). Several graph tasks may run through the same nodes at
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
  std::shared_ptr<const Region> region;  ///< keeps what `code` refers to
  std::unique_ptr<BackwardRun> code;
  std::vector<bool> isReached;              ///< by forward input: its gradient is defined
  torch::autograd::variable_list tangents;  ///< kept for `replay` alone
  std::shared_ptr<const Replay> replay;     ///< may stand in for `code`; nullptr: it may not
  /// By forward input, once eager computed them instead: the gradients that have not left.
  std::optional<torch::autograd::variable_list> replayed;
};

/// An empty tensor on the device of `options` that owns `run`.
at::Tensor makeToken(std::unique_ptr<StagedRun> run, const at::TensorOptions& options);
/// The run of a token from makeToken(), which the tensor goes on owning. Throws c10::Error for any other tensor.
StagedRun& runOf(const at::Tensor& token);

}  // namespace agspeed::runtime::autograd

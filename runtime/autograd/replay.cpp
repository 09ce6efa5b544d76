// SPDX-License-Identifier: Apache-2.0
#include "runtime/autograd/replay.h"

#include <ATen/ops/alias.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <utility>

#include "runtime/aten/random_state.h"

namespace agspeed::runtime::autograd {
namespace {

using aten::Argument;
using torch::autograd::variable_list;

// The differentiable outputs, in the order of the tangents.
variable_list outputsWithTangents(const RegionSignature& signature, const variable_list& outputs) {
  TORCH_CHECK(outputs.size() == signature.numOutputs, "replay of region ", signature.name, " returned ", outputs.size(),
              " outputs instead of ", signature.numOutputs);
  variable_list chosen;
  for (int32_t output : signature.tangents) {
    TORCH_CHECK(outputs[output].defined(), "replay of region ", signature.name, " returned no tensor for output ",
                output);
    chosen.push_back(outputs[output]);
  }
  return chosen;
}

}  // namespace

Replay::Replay(const std::vector<Argument>& inputs, aten::RandomState randomState)
    : randomState_(std::move(randomState)) {
  inputs_.reserve(inputs.size());
  for (const Argument& input : inputs) inputs_.push_back(keep(input));
}

Replay::KeptInput Replay::keep(const Argument& input) {
  KeptInput kept;
  if (const auto* integer = std::get_if<int64_t>(&input)) kept.integer = *integer;
  const auto* tensor = std::get_if<at::Tensor>(&input);
  if (tensor == nullptr) return kept;
  if (tensor->is_leaf()) {
    kept.leaf = *tensor;
    kept.version = tensor->is_inference() ? 0 : tensor->_version();
    return kept;
  }
  kept.derived = std::make_unique<Derived>(
      Derived{torch::autograd::SavedVariable(*tensor, /*is_output=*/true), tensor->grad_fn()});
  return kept;
}

Argument Replay::unpack(const KeptInput& input, const RegionSignature& signature) {
  if (input.integer) return *input.integer;
  if (input.derived != nullptr) return input.derived->saved.unpack(input.derived->history);
  if (!input.leaf.defined()) return {};
  TORCH_CHECK(
      input.leaf.is_inference() || input.leaf._version() == input.version,
      "one of the variables needed for gradient computation has been modified by an inplace operation: an input "
      "of region ",
      signature.name, " is at version ", input.leaf._version(), "; expected version ", input.version, " instead.");
  return input.leaf;
}

variable_list Replay::differentiate(const Region& region, const std::vector<size_t>& wanted,
                                    const variable_list& tangents) const {
  const bool createGraph = c10::GradMode::is_enabled();
  std::vector<Argument> inputs;
  for (const KeptInput& kept : inputs_) inputs.push_back(unpack(kept, region.signature()));
  at::AutoGradMode withHistory(true);
  // Uses aliases of the inputs, so that hooks of the inputs run only when torch's engine passes the gradients on, not
  // here.
  variable_list sources;
  for (size_t i : wanted) {
    inputs[i] = at::alias(std::get<at::Tensor>(inputs[i]));
    sources.push_back(std::get<at::Tensor>(inputs[i]));
  }
  const variable_list outputs = [&] {
    const aten::RandomStateScope sameNumbers(randomState_);
    return outputsWithTangents(region.signature(), region.eager()->replay(inputs));
  }();
  variable_list reached;
  variable_list gradients;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!tangents[i].defined() || !outputs[i].requires_grad()) continue;
    reached.push_back(outputs[i]);
    gradients.push_back(tangents[i]);
  }
  if (reached.empty()) return variable_list(wanted.size());
  return torch::autograd::grad(reached, sources, gradients, /*retain_graph=*/createGraph, createGraph,
                               /*allow_unused=*/true);
}

}  // namespace agspeed::runtime::autograd

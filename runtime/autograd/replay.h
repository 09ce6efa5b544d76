// SPDX-License-Identifier: Apache-2.0
// Replay: keeps the data of one Region call with which its EagerFunction can compute the outputs again, so that torch
// differentiates them: the inputs, by version, and the random state.
//
// It is used for create_graph=True and for tangents that are not plain tensors. Not thread-safe: its node's mutex
// guards it.
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/aten/random_state.h"
#include "runtime/aten/torch_version.h"
#include "runtime/autograd/region.h"

namespace agspeed::runtime::autograd {

class Replay {
 public:
  /// `randomState`: the generators' state before the call, undefined if it drew nothing.
  Replay(const std::vector<aten::Argument>& inputs, aten::RandomState randomState);

  /// The gradients of the inputs at the positions `wanted`; under create_graph they have a history of their own. A
  /// gradient is undefined if it depends on no tangent. Requires: the region has an EagerFunction. Throws c10::Error if
  /// an input was modified since, or if the function returned something else than the signature says. Also throws what
  /// the function throws.
  torch::autograd::variable_list differentiate(const Region& region, const std::vector<size_t>& wanted,
                                               const torch::autograd::variable_list& tangents) const;

 private:
  /// An input with a history. The tensor and its grad_fn are kept apart, so that an input that is modified later makes
  /// no reference cycle with the node that owns this.
  struct Derived {
    torch::autograd::SavedVariable saved;
    aten::NodePointer<torch::autograd::Node> history;
  };
  /// An integer, a leaf with its version, or a Derived.
  struct KeptInput {
    std::optional<int64_t> integer;
    at::Tensor leaf;
    uint32_t version = 0;
    std::unique_ptr<Derived> derived;
  };

  static KeptInput keep(const aten::Argument& input);
  static aten::Argument unpack(const KeptInput& input, const RegionSignature& signature);

  std::vector<KeptInput> inputs_;
  aten::RandomState randomState_;
};

}  // namespace agspeed::runtime::autograd

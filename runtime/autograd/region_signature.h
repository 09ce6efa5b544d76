// SPDX-License-Identifier: Apache-2.0
// RegionSignature: how the two directions of a Region fit together.
//
// The directions have the form that AOTAutograd's partitioner returns; inputs are the flat primals:
//   forward:  inputs  -> mutated inputs, user outputs, saved tensors, saved symints
//   backward: saved symints, saved tensors, tangents -> one gradient (or None) per forward input
// User outputs that are not in `tangents` get no history from the Region.
//
// The backward direction may be cut into stages, after each of which gradients are handed over:
//   stage 0:  saved symints, its saved tensors, tangents -> the gradients of stage 0, by forward input
//   stage k:  its saved tensors                          -> the gradients of stage k, by forward input
//
// Threading: a plain value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/status.h"

namespace agspeed::runtime::autograd {

struct RegionSignature {
  std::string name;                      ///< names the region in messages
  std::vector<bool> requiresGrad;        ///< by forward input, as traced
  std::vector<int32_t> mutatedInputs;    ///< forward output k holds the new value of this input
  std::vector<int32_t> mutatedByCode;    ///< inputs that the forward direction itself overwrites
  size_t numOutputs = 0;                 ///< user outputs
  std::vector<int32_t> outputsAsInputs;  ///< by user output: the input to return in its place; -1: none
  std::vector<int32_t> outputViews;      ///< by user output: the input that it is a view of; -1: none
  std::vector<int32_t> tangents;         ///< the user output of each tangent, in backward's order; empty: no backward
  /// By tangent: its dimensions from the outermost in memory to the innermost, as traced. Empty: any layout is allowed.
  std::vector<std::vector<int64_t>> tangentLayouts;
  /// By forward input: the tangents that its gradient depends on. If all of them are undefined, the gradient is
  /// undefined, as in eager. Empty: gradients are always defined.
  std::vector<std::vector<int32_t>> gradientSources;
  size_t numSavedTensors = 0;
  size_t numSavedSymints = 0;
  std::vector<int32_t> overwrittenSaved;  ///< saved tensors whose memory the backward direction may overwrite
  /// By forward input: the stage after which its gradient is handed over. Later stages read neither the gradient's
  /// memory nor the input's, because the receiver of the gradient may change both. Empty: there is one stage.
  std::vector<int32_t> gradientStages;
  /// By saved tensor: the stage that takes it. Empty: stage 0.
  std::vector<int32_t> savedStages;
  bool drawsRandomNumbers = false;  ///< the forward direction draws from torch's default generator

  // Where the parts of the forward direction's outputs begin.
  size_t firstOutput() const { return mutatedInputs.size(); }
  size_t firstSavedTensor() const { return firstOutput() + numOutputs; }
  size_t firstSavedSymint() const { return firstSavedTensor() + numSavedTensors; }
  size_t numForwardOutputs() const { return firstSavedSymint() + numSavedSymints; }
  size_t numStages() const;
  size_t stageOfGradient(size_t input) const { return gradientStages.empty() ? 0 : gradientStages[input]; }
  size_t stageOfSaved(size_t saved) const { return savedStages.empty() ? 0 : savedStages[saved]; }
  size_t numBackwardInputs() const { return numSavedSymints + numSavedTensors + tangents.size(); }
  /// Whether the caller gets an input, or a view of one, for this user output; the code's own result is dropped.
  bool isMadeFromInput(size_t output) const { return outputsAsInputs[output] != -1 || outputViews[output] != -1; }
};

/// Errors: kInvalidArgument when the signature contradicts itself; kUnsupported for a mutated input that requires grad
/// or that an output is a view of.
Status verify(const RegionSignature& signature);

}  // namespace agspeed::runtime::autograd
